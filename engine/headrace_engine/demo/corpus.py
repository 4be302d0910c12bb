"""The corpus: terms, hand-written intents, templates, and what the model does not know."""

import random
import re
import tomllib
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "corpus"
WITHHELD = 3  # definition questions per term that training never sees
_CHOICE = re.compile(r"\[([^\[\]]*)\]")

Pattern = tuple[tuple[str, ...], ...]
"""The choices of each part of a phrasing, in order."""


@dataclass(frozen=True)
class Term:
    """A word of model serving, its answers, and whole questions (`asks`) that describe it."""

    id: str
    names: tuple[str, ...]
    answer: str
    why: str | None
    improve: str | None
    asks: tuple[str, ...]


@dataclass(frozen=True)
class Intent:
    """A hand-written intent: phrasings (`say`) and patterns (`wide`) for training, two sets kept for the evaluation."""

    id: str
    answer: str
    say: tuple[str, ...]
    wide: tuple[Pattern, ...]
    held: tuple[str, ...]
    fresh: tuple[str, ...]


@dataclass(frozen=True)
class Phrases:
    """Phrases of one kind with `{x}` or `{n}` for a name; `held` is never trained on."""

    say: tuple[str, ...]
    held: tuple[str, ...]


@dataclass(frozen=True)
class Unknown:
    """Questions that the model has no answer to."""

    answer: str
    nouns: Phrases
    questions: Phrases


@dataclass(frozen=True)
class Filler:
    """Text around a question: short system prompts and sentences that make prompts long."""

    systems: Phrases
    sentences: Phrases


@dataclass(frozen=True)
class Synonyms:
    """`groups`: words that may stand for each other; `inserts` may be added anywhere, `drops` left out."""

    groups: tuple[tuple[str, ...], ...]
    inserts: tuple[str, ...]
    drops: frozenset[str]


@dataclass(frozen=True)
class Corpus:
    """Everything that is written by hand; `withheld` holds definition questions kept for the evaluation."""

    terms: tuple[Term, ...]
    intents: tuple[Intent, ...]
    templates: dict[str, Phrases]
    prefixes: tuple[str, ...]
    suffixes: tuple[str, ...]
    unknown: Unknown
    filler: Filler
    synonyms: Synonyms
    withheld: tuple[tuple[str, Term], ...]  # question, term

    def answers(self) -> list[str]:
        """Every answer once, in a stable order."""
        found = [a for t in self.terms for a in (t.answer, t.why, t.improve) if a is not None]
        return [*dict.fromkeys([*found, *(i.answer for i in self.intents), self.unknown.answer])]

    def kept(self) -> frozenset[str]:
        """Every question of the evaluation without case and punctuation: training never sees one of them."""
        questions = [text for intent in self.intents for text in intent.held + intent.fresh]
        questions += self.unknown.questions.held
        for phrases in self.templates.values():
            for template in phrases.held:
                questions += [template.replace("{x}", name) for term in self.terms for name in term.names]
        questions += [question for question, _ in self.withheld]
        return frozenset(normal(text) for text in questions)


def expand(pattern: str) -> list[str]:
    """All readings of a pattern: `[a|b|]` means a, b or nothing. Double spaces are closed."""
    return [_tidy("".join(reading)) for reading in product(*parse(pattern))]


def parse(pattern: str) -> Pattern:
    """A pattern as the choices of its parts."""
    return tuple(tuple(part.split("|")) if i % 2 else (part,) for i, part in enumerate(_CHOICE.split(pattern)))


def reading(pattern: Pattern, rng: random.Random) -> str:
    """One reading of a pattern at random."""
    return _tidy("".join(rng.choice(part) for part in pattern))


def _tidy(text: str) -> str:
    return re.sub(r" +([?,!])|( ) +", r"\1\2", text).strip()


def normal(text: str) -> str:
    """Text without case and punctuation, to compare questions."""
    return re.sub(r"[^a-z0-9]+", " ", text.lower().replace("'", "")).strip()


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / name).read_text(encoding="utf-8"))


def _expanded(patterns: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for pattern in patterns for text in expand(pattern)))


def _phrases(say: list[str], held: list[str]) -> Phrases:
    blocked = {normal(text) for text in held}
    return Phrases(tuple(t for t in _expanded(say) if not blocked or normal(t) not in blocked), tuple(held))


def _term(key: str, row: dict[str, Any]) -> Term:
    return Term(key, tuple(row["names"]), row["answer"], row.get("why"), row.get("improve"), tuple(row.get("asks", ())))


def _intents() -> tuple[Intent, ...]:
    rows, wide = _read("intents.toml"), _read("wide.toml")
    blocked = {normal(text) for row in rows.values() for text in row["held"] + row["fresh"]}
    return tuple(
        Intent(
            key,
            row["answer"],
            tuple(text for text in _expanded(row["say"]) if normal(text) not in blocked),
            tuple(parse(pattern) for pattern in wide[key]),
            tuple(row["held"]),
            tuple(row["fresh"]),
        )
        for key, row in rows.items()
    )


def _withhold(terms: tuple[Term, ...], define: Phrases) -> tuple[tuple[str, Term], ...]:
    rng = random.Random(20_24)
    return tuple(
        (template.replace("{x}", rng.choice(term.names)), term)
        for term in terms
        for template in rng.sample(define.say, WITHHELD)
    )


def load() -> Corpus:
    """Read the corpus folder."""
    terms = tuple(_term(key, row) for key, row in _read("terms.toml").items())
    rows = _read("templates.toml")
    prefix = rows.pop("prefix")
    templates = {key: _phrases(row["say"], row["held"]) for key, row in rows.items()}
    unknown, filler, words = _read("unknown.toml"), _read("filler.toml"), _read("synonyms.toml")
    return Corpus(
        terms=terms,
        intents=_intents(),
        templates=templates,
        prefixes=tuple(prefix["say"]),
        suffixes=tuple(prefix["suffix"]),
        unknown=Unknown(
            unknown["answer"],
            Phrases(tuple(unknown["nouns"]), tuple(unknown["held_nouns"])),
            _phrases(unknown["say"], unknown["held"]),
        ),
        filler=Filler(
            Phrases(tuple(filler["systems"]), tuple(filler["held_systems"])),
            Phrases(tuple(filler["sentences"]), tuple(filler["held_sentences"])),
        ),
        synonyms=Synonyms(
            tuple(tuple(group) for group in words["groups"]), tuple(words["inserts"]), frozenset(words["drops"])
        ),
        withheld=_withhold(terms, templates["define"]),
    )
