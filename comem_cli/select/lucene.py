"""Declare by hand the few Lucene 9 classes that comem uses.

Import it only after `jvm.start_jvm`: a declaration looks its class up in the running machine. pyjnius' `autoclass`
would find the same by reflection, for a second and more. A class that a method returns must be declared too, or
pyjnius falls back to reflection. The class and method names are Lucene's.
"""

from __future__ import annotations

from typing import Any

from jnius import (
    JavaClass,
    JavaException,
    JavaField,
    JavaMethod,
    JavaMultipleMethod,
    JavaStaticField,
    JavaStaticMethod,
    MetaJavaClass,
)

__all__ = ["JavaException"]

LUCENE = "org/apache/lucene/"
STRING = "Ljava/lang/String;"


def _type(name: str) -> str:
    """Return the JNI signature of a Lucene class."""
    return f"L{LUCENE}{name};"


def _declare(name: str, *constructors: str, **members: object) -> Any:
    """Declare a Java class: its full name, the argument signatures of its constructors, its members."""
    body = {
        "__javaclass__": name,
        "__javaconstructor__": [(f"({arguments})V", False) for arguments in constructors],
        **members,
    }
    return MetaJavaClass(name.rpartition("/")[2], (JavaClass,), body)


DIRECTORY, READER, QUERY = _type("store/Directory"), _type("index/IndexReader"), _type("search/Query")
ANALYZER, TOP_DOCS, DOCUMENT = _type("analysis/Analyzer"), _type("search/TopDocs"), _type("document/Document")
CONFIG, STORE, STATUS = (
    _type("index/IndexWriterConfig"),
    _type("document/Field$Store"),
    _type("index/CheckIndex$Status"),
)

_declare("java/nio/file/Path")
File = _declare("java/io/File", STRING, toPath=JavaMethod("()Ljava/nio/file/Path;"))

NoLockFactory = _declare(LUCENE + "store/NoLockFactory", INSTANCE=JavaStaticField(_type("store/NoLockFactory")))
FSDirectory = _declare(
    LUCENE + "store/FSDirectory",
    open=JavaStaticMethod(f"(Ljava/nio/file/Path;{_type('store/LockFactory')}){_type('store/FSDirectory')}"),
    close=JavaMethod("()V"),
)
WhitespaceAnalyzer = _declare(LUCENE + "analysis/core/WhitespaceAnalyzer", "")

# Writing.
IndexOptions = _declare(LUCENE + "index/IndexOptions", DOCS_AND_FREQS=JavaStaticField(_type("index/IndexOptions")))
FieldType = _declare(LUCENE + "document/FieldType", "", setIndexOptions=JavaMethod(f"({_type('index/IndexOptions')})V"))
Field = _declare(
    LUCENE + "document/Field",
    STRING + "Ljava/lang/CharSequence;" + _type("index/IndexableFieldType"),
    setStringValue=JavaMethod(f"({STRING})V"),
)
StoredField = _declare(LUCENE + "document/StoredField", STRING + STRING, setStringValue=JavaMethod(f"({STRING})V"))
Document = _declare(
    LUCENE + "document/Document",
    "",
    add=JavaMethod(f"({_type('index/IndexableField')})V"),
    get=JavaMethod(f"({STRING}){STRING}"),
)
LogDocMergePolicy = _declare(LUCENE + "index/LogDocMergePolicy", "")
IndexWriterConfig = _declare(
    LUCENE + "index/IndexWriterConfig",
    ANALYZER,
    setMergePolicy=JavaMethod(f"({_type('index/MergePolicy')}){CONFIG}"),
    setRAMBufferSizeMB=JavaMethod(f"(D){CONFIG}"),
)
IndexWriter = _declare(
    LUCENE + "index/IndexWriter",
    DIRECTORY + CONFIG,
    addDocument=JavaMethod("(Ljava/lang/Iterable;)J"),
    forceMerge=JavaMethod("(I)V"),
    tryDeleteDocument=JavaMethod(f"({READER}I)J"),
    close=JavaMethod("()V"),
    rollback=JavaMethod("()V"),
)
CheckStatus = _declare(LUCENE + "index/CheckIndex$Status", clean=JavaField("Z"))
CheckIndex = _declare(
    LUCENE + "index/CheckIndex",
    DIRECTORY,
    checkIndex=JavaMethod(f"(){STATUS}"),
    setChecksumsOnly=JavaMethod("(Z)V"),
    close=JavaMethod("()V"),
)

# Searching.
DirectoryReader = _declare(
    LUCENE + "index/DirectoryReader",
    open=JavaMultipleMethod(
        [
            (f"({_type(name)}){_type('index/DirectoryReader')}", True, False)  # static, of fixed arguments
            for name in ("store/Directory", "index/IndexWriter")
        ]
    ),
    numDocs=JavaMethod("()I"),
    docFreq=JavaMethod(f"({_type('index/Term')})I"),
    close=JavaMethod("()V"),
)
Term = _declare(LUCENE + "index/Term", STRING + STRING)
StoredFields = _declare(LUCENE + "index/StoredFields", document=JavaMethod(f"(I){DOCUMENT}"))
BM25Similarity = _declare(LUCENE + "search/similarities/BM25Similarity", "FF")
Query = _declare(LUCENE + "search/Query")
QueryBuilder = _declare(
    LUCENE + "util/QueryBuilder", ANALYZER, createBooleanQuery=JavaMethod(f"({STRING}{STRING}){QUERY}")
)
StringReader = _declare("java/io/StringReader", STRING)
MoreLikeThis = _declare(
    LUCENE + "queries/mlt/MoreLikeThis",
    READER,
    setAnalyzer=JavaMethod(f"({ANALYZER})V"),
    setMinTermFreq=JavaMethod("(I)V"),
    setMinDocFreq=JavaMethod("(I)V"),
    setMaxDocFreq=JavaMethod("(I)V"),
    setMaxQueryTerms=JavaMethod("(I)V"),
    setMaxNumTokensParsed=JavaMethod("(I)V"),
    like=JavaMethod(f"({STRING}[Ljava/io/Reader;){QUERY}"),
)
ScoreDoc = _declare(LUCENE + "search/ScoreDoc", doc=JavaField("I"), score=JavaField("F"))
TopDocs = _declare(LUCENE + "search/TopDocs", scoreDocs=JavaField(f"[{_type('search/ScoreDoc')}"))
TopScoreDocCollector = _declare(
    LUCENE + "search/TopScoreDocCollector",
    create=JavaStaticMethod(f"(II){_type('search/TopScoreDocCollector')}"),
    topDocs=JavaMethod(f"(){TOP_DOCS}"),
)
IndexSearcher = _declare(
    LUCENE + "search/IndexSearcher",
    READER,
    setMaxClauseCount=JavaStaticMethod("(I)V"),
    setSimilarity=JavaMethod(f"({_type('search/similarities/Similarity')})V"),
    search=JavaMethod(f"({QUERY}{_type('search/Collector')})V"),
    storedFields=JavaMethod(f"(){_type('index/StoredFields')}"),
)
