"""The story corpus: whole books of public-domain tales, split into training and held-out books."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

DOCUMENT_SEPARATOR = "<|endoftext|>"
"""Ends every document in the corpus files; also the tokenizer's only special token."""

BOOKS_MANIFEST = Path(__file__).with_name("books.tsv")


@dataclass(frozen=True)
class Book:
    """One book of the corpus, cut into documents (single tales, or the whole book for novels)."""

    pg_id: str
    title: str
    author: str
    split: str
    documents: tuple[str, ...]


def load_books(corpus_dir: Path) -> list[Book]:
    """Reads every book that both `index.tsv` and `books.tsv` name.

    `index.tsv` says where a book's bytes are; `books.tsv` says whether it is a training or a
    held-out book. The split is by whole books so that no tale of a held-out book, and no other
    chapter of a held-out novel, is ever seen in training.
    """
    manifest = {row["pg_id"]: row for row in _read_tsv(BOOKS_MANIFEST)}
    texts: dict[str, bytes] = {}
    books = []
    for entry in _read_tsv(corpus_dir / "index.tsv"):
        name = entry["file"]
        if name not in texts:
            texts[name] = (corpus_dir / name).read_bytes()
        start = int(entry["byte_offset"])
        text = texts[name][start : start + int(entry["byte_length"])].decode("utf-8")
        documents = tuple(d.strip() for d in text.split(DOCUMENT_SEPARATOR) if d.strip())
        row = manifest[entry["pg_id"]]
        books.append(Book(entry["pg_id"], row["title"], row["author"], row["split"], documents))
    return books


def drop_overlapping_documents(
    training: list[str], held_out: list[str], shingle_words: int = 8, limit: float = 0.1
) -> list[str]:
    """Removes training documents that retell a held-out one word for word.

    Fairy tales are reprinted in many collections, so a whole-book split alone leaks: a document is
    dropped if more than `limit` of its `shingle_words`-word shingles also occur in a held-out book.
    """

    def shingles(text: str) -> set[int]:
        words = text.lower().split()
        return {
            hash(tuple(words[i : i + shingle_words]))
            for i in range(max(1, len(words) - shingle_words + 1))
        }

    seen = set().union(*(shingles(document) for document in held_out))
    kept = []
    for document in training:
        own = shingles(document)
        if len(own & seen) <= limit * len(own):
            kept.append(document)
    return kept


def _read_tsv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
