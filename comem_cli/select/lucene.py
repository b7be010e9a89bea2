"""Declare by hand the few Lucene 9 classes with which comem searches; `lucene_writing` has those of writing.

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


def java_type(name: str) -> str:
    """Return the JNI signature of a Lucene class."""
    return f"L{LUCENE}{name};"


def declare(name: str, *constructors: str, **members: object) -> Any:
    """Declare a Java class: its full name, the argument signatures of its constructors, its members."""
    body = {
        "__javaclass__": name,
        "__javaconstructor__": [(f"({arguments})V", False) for arguments in constructors],
        **members,
    }
    return MetaJavaClass(name.rpartition("/")[2], (JavaClass,), body)


DIRECTORY, READER, QUERY = java_type("store/Directory"), java_type("index/IndexReader"), java_type("search/Query")
ANALYZER, TOP_DOCS, DOCUMENT = (
    java_type("analysis/Analyzer"),
    java_type("search/TopDocs"),
    java_type("document/Document"),
)

declare("java/nio/file/Path")
File = declare("java/io/File", STRING, toPath=JavaMethod("()Ljava/nio/file/Path;"))

NoLockFactory = declare(LUCENE + "store/NoLockFactory", INSTANCE=JavaStaticField(java_type("store/NoLockFactory")))
FSDirectory = declare(
    LUCENE + "store/FSDirectory",
    open=JavaStaticMethod(f"(Ljava/nio/file/Path;{java_type('store/LockFactory')}){java_type('store/FSDirectory')}"),
    close=JavaMethod("()V"),
)
WhitespaceAnalyzer = declare(LUCENE + "analysis/core/WhitespaceAnalyzer", "")

Document = declare(
    LUCENE + "document/Document",
    "",
    add=JavaMethod(f"({java_type('index/IndexableField')})V"),
    get=JavaMethod(f"({STRING}){STRING}"),
)

DirectoryReader = declare(
    LUCENE + "index/DirectoryReader",
    open=JavaMultipleMethod(
        [
            (f"({java_type(name)}){java_type('index/DirectoryReader')}", True, False)  # static, of fixed arguments
            for name in ("store/Directory", "index/IndexWriter")
        ]
    ),
    numDocs=JavaMethod("()I"),
    docFreq=JavaMethod(f"({java_type('index/Term')})I"),
    close=JavaMethod("()V"),
)
Term = declare(LUCENE + "index/Term", STRING + STRING)
StoredFields = declare(LUCENE + "index/StoredFields", document=JavaMethod(f"(I){DOCUMENT}"))
BM25Similarity = declare(LUCENE + "search/similarities/BM25Similarity", "FF")
Query = declare(LUCENE + "search/Query")
QueryBuilder = declare(
    LUCENE + "util/QueryBuilder", ANALYZER, createBooleanQuery=JavaMethod(f"({STRING}{STRING}){QUERY}")
)
StringReader = declare("java/io/StringReader", STRING)
MoreLikeThis = declare(
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
ScoreDoc = declare(LUCENE + "search/ScoreDoc", doc=JavaField("I"), score=JavaField("F"))
TopDocs = declare(LUCENE + "search/TopDocs", scoreDocs=JavaField(f"[{java_type('search/ScoreDoc')}"))
TopScoreDocCollector = declare(
    LUCENE + "search/TopScoreDocCollector",
    create=JavaStaticMethod(f"(II){java_type('search/TopScoreDocCollector')}"),
    topDocs=JavaMethod(f"(){TOP_DOCS}"),
)
IndexSearcher = declare(
    LUCENE + "search/IndexSearcher",
    READER,
    setMaxClauseCount=JavaStaticMethod("(I)V"),
    setSimilarity=JavaMethod(f"({java_type('search/similarities/Similarity')})V"),
    search=JavaMethod(f"({QUERY}{java_type('search/Collector')})V"),
    storedFields=JavaMethod(f"(){java_type('index/StoredFields')}"),
)
