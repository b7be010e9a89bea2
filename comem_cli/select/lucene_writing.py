"""Declare by hand the Lucene 9 classes that write and check an index, which a search need not load."""

from __future__ import annotations

from jnius import JavaField, JavaMethod, JavaStaticField

from comem_cli.select.lucene import ANALYZER, DIRECTORY, LUCENE, READER, STRING, declare, java_type

CONFIG, STATUS = java_type("index/IndexWriterConfig"), java_type("index/CheckIndex$Status")

IndexOptions = declare(LUCENE + "index/IndexOptions", DOCS_AND_FREQS=JavaStaticField(java_type("index/IndexOptions")))
FieldType = declare(
    LUCENE + "document/FieldType", "", setIndexOptions=JavaMethod(f"({java_type('index/IndexOptions')})V")
)
Field = declare(
    LUCENE + "document/Field",
    STRING + "Ljava/lang/CharSequence;" + java_type("index/IndexableFieldType"),
    setStringValue=JavaMethod(f"({STRING})V"),
)
StoredField = declare(LUCENE + "document/StoredField", STRING + STRING, setStringValue=JavaMethod(f"({STRING})V"))
LogDocMergePolicy = declare(LUCENE + "index/LogDocMergePolicy", "")
IndexWriterConfig = declare(
    LUCENE + "index/IndexWriterConfig",
    ANALYZER,
    setMergePolicy=JavaMethod(f"({java_type('index/MergePolicy')}){CONFIG}"),
    setRAMBufferSizeMB=JavaMethod(f"(D){CONFIG}"),
)
IndexWriter = declare(
    LUCENE + "index/IndexWriter",
    DIRECTORY + CONFIG,
    addDocument=JavaMethod("(Ljava/lang/Iterable;)J"),
    forceMerge=JavaMethod("(I)V"),
    tryDeleteDocument=JavaMethod(f"({READER}I)J"),
    close=JavaMethod("()V"),
    rollback=JavaMethod("()V"),
)
CheckStatus = declare(LUCENE + "index/CheckIndex$Status", clean=JavaField("Z"))
CheckIndex = declare(
    LUCENE + "index/CheckIndex",
    DIRECTORY,
    checkIndex=JavaMethod(f"(){STATUS}"),
    setChecksumsOnly=JavaMethod("(Z)V"),
    close=JavaMethod("()V"),
)
