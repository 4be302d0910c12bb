"""Makes training chats: single questions, follow-ups, long chats, system prompts and long fillers."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from headrace_engine.demo.augment import Dresser
from headrace_engine.demo.corpus import Corpus, Intent, Term, normal, reading

_VARIED = frozenset(
    {
        "ack",
        "complaint",
        "goodbye",
        "greeting",
        "help",
        "joke",
        "languages",
        "more",
        "ping",
        "praise",
        "sorry",
        "who_are_you",
        "why_slow",
    }
)
"""Intents that people put in the most different words: drawn twice as often."""


@dataclass(frozen=True)
class Turn:
    """A question and the answer to learn; `topic` is the term it was about."""

    question: str
    answer: str
    topic: Term | None = None


@dataclass(frozen=True)
class Chat:
    """A conversation; every answer of it is learned."""

    system: str | None
    turns: tuple[Turn, ...]


class ChatMaker:
    """An endless stream of chats from one seed."""

    def __init__(self, corpus: Corpus, seed: int) -> None:
        self._corpus = corpus
        self._rng = random.Random(seed)
        self._dresser = Dresser(corpus, self._rng)
        self._kept = corpus.kept()
        self._clarify = next(i for i in corpus.intents if i.id == "clarify")
        self._others = [i for i in corpus.intents for _ in range(1 + (i.id in _VARIED)) if i.id != "clarify"]
        self._weights = {i.id: [math.log2(1 + math.prod(map(len, p))) for p in i.wide] for i in corpus.intents}
        self._named = self._questions_with_names()
        self._openers = [text for i in corpus.intents if i.id in ("greeting", "ack", "praise") for text in i.say]
        self._with_why = [t for t in corpus.terms if t.why is not None]
        self._with_improve = [t for t in corpus.terms if t.improve is not None]

    def __iter__(self) -> Iterator[Chat]:
        while True:
            yield self.chat()

    def chat(self) -> Chat:
        """One chat of a random kind."""
        kind = self._rng.random()
        system = self._system() if self._rng.random() < 0.10 else None
        if kind < 0.89:
            return Chat(system, (self._turn(()),))
        if kind < 0.945:
            return Chat(system, self._follow_up())
        if kind < 0.984:
            return Chat(system, self._turns(self._rng.randint(2, 6)))
        if kind < 0.986:
            return Chat(system, self._turns(self._rng.randint(7, 24)))
        return self._long()

    def filler(self, words: int) -> str:
        """Text of at least `words` words: mixed, repeated, or made-up."""
        rng, sentences = self._rng, self._corpus.filler.sentences.say
        kind = rng.random()
        out: list[str] = []
        repeated = rng.sample(sentences, rng.randint(1, 3))
        while sum(len(s.split()) for s in out) < words:
            if kind < 0.25:
                out.append(rng.choice(repeated))
            elif kind < 0.45:
                out.append(" ".join(self._dresser.pseudo() for _ in range(8)) + ".")
            elif kind < 0.60:
                out.append(rng.choice(self._corpus.answers()))
            else:
                out.append(rng.choice(sentences))
        return rng.choice((" ", " ", "\n")).join(out)

    def _long(self) -> Chat:
        words = int(2 ** self._rng.uniform(5, 10.3))
        text = self.filler(words)
        turns = self._turns(self._rng.randint(2, 8)) if self._rng.random() < 0.75 else self._follow_up()
        if self._rng.random() < 0.7:
            return Chat(f"{self._system()} {text}" if self._rng.random() < 0.6 else text, turns)
        first = turns[0]
        asked = self._rng.choice(("{f}\n\n{q}", "{f} {q}", "{f}\nQuestion: {q}", "Read this: {f}\n{q}"))
        question = asked.format(f=text.replace("{", "").replace("}", ""), q=first.question)
        return Chat(None, (Turn(question, first.answer, first.topic), *turns[1:]))

    def _system(self) -> str:
        systems = self._corpus.filler.systems.say
        return " ".join(self._rng.sample(systems, self._rng.choice((1, 1, 1, 2, 3))))

    def _turns(self, count: int) -> tuple[Turn, ...]:
        turns: list[Turn] = []
        for _ in range(count):
            topic = turns[-1].topic if turns else None
            if topic is not None and self._rng.random() < 0.25:
                turns.append(self._follow(topic))
            else:
                turns.append(self._turn(tuple(turns)))
        return tuple(turns)

    def _follow_up(self) -> tuple[Turn, ...]:
        rng = self._rng
        before = self._turns(rng.randint(1, 2)) if rng.random() < 0.25 else ()
        first = self._define(rng.choice(self._with_why if rng.random() < 0.85 else self._corpus.terms))
        turns = [*before, first]
        for _ in range(rng.choice((1, 1, 2))):
            turns.append(self._follow(turns[-1].topic or rng.choice(self._with_why)))
        return tuple(turns)

    def _follow(self, topic: Term) -> Turn:
        kind = self._rng.random()
        if kind < 0.30:
            other = self._rng.choice(self._corpus.terms)
            return self._ask("about_follow", other, other.answer)
        key, answer = ("why_follow", topic.why) if kind < 0.65 else ("improve_follow", topic.improve)
        question = self._dress(self._rng.choice(self._corpus.templates[key].say))
        return Turn(question, answer or self._clarify.answer, topic)

    def _turn(self, before: tuple[Turn, ...]) -> Turn:
        kind = self._rng.random()
        if kind < 0.25:
            return self._define(self._rng.choice(self._corpus.terms))
        if kind < 0.35:
            return self._reason()
        if kind < 0.81:
            return self._intent(clear=not any(t.topic for t in before))
        return Turn(self._dress(self._unknown()), self._corpus.unknown.answer)

    def _define(self, term: Term) -> Turn:
        if term.asks and self._rng.random() < 0.08:
            return Turn(self._dress(self._rng.choice(term.asks)), term.answer, term)
        return self._ask("define", term, term.answer)

    def _dress(self, text: str) -> str:
        for _ in range(20):
            dressed = self._dresser.dress(text)
            if normal(dressed) not in self._kept:
                return dressed
        return self._dress(f"ok, {text}")

    def _ask(self, key: str, term: Term, answer: str) -> Turn:
        while True:
            template = self._rng.choice(self._corpus.templates[key].say)
            question = template.replace("{x}", self._rng.choice(term.names))
            if normal(question) not in self._kept:
                return Turn(self._dress(question), answer, term)

    def _reason(self) -> Turn:
        kind = self._rng.random()
        if kind < 0.5:
            term = self._rng.choice(self._with_why)
            return self._ask("why", term, term.why or term.answer)
        if kind < 0.88:
            term = self._rng.choice(self._with_improve)
            return self._ask("improve", term, term.improve or term.answer)
        term = self._rng.choice(self._corpus.terms)
        if kind < 0.94:
            return self._ask("why", term, term.why or term.answer)
        return self._ask("improve", term, term.improve or term.answer)

    def _intent(self, clear: bool) -> Turn:
        intent = self._clarify if clear and self._rng.random() < 0.04 else self._rng.choice(self._others)
        text = self._dresser.vary(self._phrasing(intent))
        if len(text) < 40 and self._rng.random() < 0.10:
            openers = self._openers if self._rng.random() < 0.4 else intent.say
            text = self._dresser.join(self._rng.choice(openers), text)
        return Turn(self._dress(text), intent.answer)

    def _phrasing(self, intent: Intent) -> str:
        if self._rng.random() < 0.4:
            return self._rng.choice(intent.say)
        while True:
            text = reading(self._rng.choices(intent.wide, self._weights[intent.id])[0], self._rng)
            if normal(text) not in self._named:
                return text

    def _questions_with_names(self) -> frozenset[str]:
        """Every question that names a term, without case and punctuation: its answer is the term's."""
        corpus = self._corpus
        templates = [text for key in ("define", "why", "improve") for text in corpus.templates[key].say]
        names = [name for term in corpus.terms for name in term.names]
        return frozenset(normal(template.replace("{x}", name)) for template in templates for name in names)

    def _unknown(self) -> str:
        rng, unknown, templates = self._rng, self._corpus.unknown, self._corpus.templates
        kind = rng.random()
        if kind < 0.30:
            return rng.choice(templates["define"].say).replace("{x}", rng.choice(unknown.nouns.say))
        if kind < 0.52:
            return rng.choice(templates["define"].say).replace("{x}", self._dresser.pseudo())
        if kind < 0.64:
            name = rng.choice(unknown.nouns.say) if rng.random() < 0.6 else self._dresser.pseudo()
            return rng.choice(templates[rng.choice(("why", "improve"))].say).replace("{x}", name)
        question = rng.choice(unknown.questions.say)
        while "{n}" in question:
            question = question.replace("{n}", rng.choice(unknown.nouns.say), 1)
        return self._dresser.vary(question)
