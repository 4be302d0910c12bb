"""What the evaluation asks: chats that training never saw, by kind."""

import random
from itertools import cycle

from headrace_engine.demo.augment import Dresser
from headrace_engine.demo.chats import Chat, Turn
from headrace_engine.demo.corpus import Corpus, Term


def _ask(question: str, answer: str) -> Chat:
    return Chat(None, (Turn(question, answer),))


def _first(term: Term) -> Turn:
    return Turn(f"What is {term.names[0]}?", term.answer)


def _reasons(corpus: Corpus) -> list[tuple[str, Term, str]]:
    why = [("why", t, t.why) for t in corpus.terms if t.why]
    return [*why, *(("improve", t, t.improve) for t in corpus.terms if t.improve)]


def _templates(corpus: Corpus) -> list[Chat]:
    names = {term.id: cycle(term.names) for term in corpus.terms}
    rows = [("define", term, term.answer) for term in corpus.terms] + _reasons(corpus)
    return [
        _ask(template.replace("{x}", next(names[term.id])), answer)
        for key, term, answer in rows
        for template in corpus.templates[key].held
    ]


def _follow_ups(corpus: Corpus) -> list[Chat]:
    chats = [
        Chat(None, (_first(term), Turn(template, answer)))
        for key, term, answer in _reasons(corpus)
        for template in corpus.templates[f"{key}_follow"].held
    ]
    for first, second in zip(corpus.terms, corpus.terms[1:], strict=False):
        for template in corpus.templates["about_follow"].held[:2]:
            chats.append(Chat(None, (_first(first), Turn(template.replace("{x}", second.names[0]), second.answer))))
    return chats


def _unknown(corpus: Corpus, rng: random.Random) -> dict[str, list[Chat]]:
    dresser, unknown = Dresser(corpus, rng), corpus.unknown
    define = corpus.templates["define"]
    words = [dresser.pseudo() for _ in range(100)]
    return {
        "unrelated: whole questions": [_ask(q, unknown.answer) for q in unknown.questions.held],
        "unrelated: new nouns": [
            _ask(rng.choice((define.say, define.held)[i % 2]).replace("{x}", noun), unknown.answer)
            for noun in unknown.nouns.held
            for i in range(2)
        ],
        "unrelated: made-up words": [_ask(rng.choice(define.say).replace("{x}", w), unknown.answer) for w in words],
    }


def _long(corpus: Corpus, rng: random.Random, words: int) -> list[Chat]:
    chats = []
    for term in corpus.terms[::2]:
        text = [rng.choice(corpus.filler.systems.held)]
        while sum(len(s.split()) for s in text) < words:
            text.append(rng.choice(corpus.filler.sentences.held))
        chats.append(Chat(" ".join(text), (_first(term),)))
    return chats


def make(corpus: Corpus) -> dict[str, list[Chat]]:
    """All kinds of questions, the same at every call."""
    rng = random.Random(7)
    return {
        "seen": [Chat(None, (_first(t),)) for t in corpus.terms],
        "paraphrases: withheld questions": [_ask(question, term.answer) for question, term in corpus.withheld],
        "paraphrases: withheld templates": _templates(corpus),
        "hand-written intents, looked at": [_ask(q, intent.answer) for intent in corpus.intents for q in intent.held],
        "hand-written intents, blind": [_ask(q, intent.answer) for intent in corpus.intents for q in intent.fresh],
        "follow-ups": _follow_ups(corpus),
        **_unknown(corpus, rng),
        "system prompt, ~25 words": _long(corpus, rng, 25),
        "system prompt, ~100 words": _long(corpus, rng, 100),
        "system prompt, ~350 words": _long(corpus, rng, 350),
        "system prompt, ~800 words": _long(corpus, rng, 800),
    }
