"""The demo model's corpus and the chats made from it."""

from itertools import islice
from random import Random

import pytest

pytest.importorskip("tokenizers")

from headrace_engine.demo.chats import Chat, ChatMaker, Turn
from headrace_engine.demo.corpus import Corpus, expand, load, normal, parse, reading
from headrace_engine.demo.tokenizer import END_ID, ChatEncoder, decisive, train_tokenizer


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load()


@pytest.mark.parametrize(
    ("pattern", "readings"),
    [
        ("hello", ["hello"]),
        ("hi [there|again]", ["hi there", "hi again"]),
        ("hi [there|]", ["hi there", "hi"]),
        ("[a|b] [c|d]", ["a c", "a d", "b c", "b d"]),
        ("can I ask [you|] ?", ["can I ask you?", "can I ask?"]),
    ],
    ids=["plain", "choice", "optional", "product", "space-before-mark"],
)
def test_patterns_expand(pattern: str, readings: list[str]) -> None:
    assert expand(pattern) == readings


def test_every_intent_has_many_phrasings_and_some_kept(corpus: Corpus) -> None:
    for intent in corpus.intents:
        assert len(intent.say) >= 25, intent.id
        assert len(intent.wide) >= 10, intent.id
        assert len(intent.held) >= 4, intent.id
        assert len(intent.fresh) >= 8, intent.id


def test_a_pattern_reads_as_one_of_its_expansions() -> None:
    text = "[how|why] do I [stop|end|] it [now|] ?"
    rng = Random(3)
    assert {reading(parse(text), rng) for _ in range(300)} == set(expand(text))


def test_a_phrasing_belongs_to_one_intent(corpus: Corpus) -> None:
    owner: dict[str, str] = {}
    for intent in corpus.intents:
        for text in intent.say:
            assert owner.setdefault(normal(text), intent.id) == intent.id, text


def test_a_question_that_names_a_term_is_answered_with_the_term(corpus: Corpus) -> None:
    answers = {normal(f"{name}?"): term.answer for term in corpus.terms for name in term.names}
    for chat in islice(ChatMaker(corpus, 6), 3000):
        for turn in chat.turns:
            assert answers.get(normal(turn.question), turn.answer) == turn.answer, turn.question


def test_a_name_belongs_to_one_term(corpus: Corpus) -> None:
    owner: dict[str, str] = {}
    for term in corpus.terms:
        for name in term.names:
            assert owner.setdefault(normal(name), term.id) == term.id, name


def test_answers_are_short_sentences(corpus: Corpus) -> None:
    assert len(corpus.answers()) >= 130
    for answer in corpus.answers():
        assert 10 < len(answer) <= 130, answer
        assert answer[-1] in ".?!", answer


def test_training_never_sees_a_kept_question(corpus: Corpus) -> None:
    kept = corpus.kept()
    for chat in islice(ChatMaker(corpus, 5), 3000):
        for turn in chat.turns:
            assert normal(turn.question) not in kept


def test_chats_repeat_by_seed(corpus: Corpus) -> None:
    one, same, other = (list(islice(ChatMaker(corpus, seed), 50)) for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_few_first_tokens_tell_an_answer_from_all_others(corpus: Corpus) -> None:
    answers = corpus.answers()
    tokenizer = train_tokenizer(answers * 3)
    for answer, count in decisive(answers, tokenizer).items():
        start = tokenizer.encode(answer).ids[:count]
        assert [a for a in answers if tokenizer.encode(a).ids[:count] == start] == [answer]


def test_only_answers_are_learned(corpus: Corpus) -> None:
    tokenizer = train_tokenizer(corpus.answers() * 3)
    chat = Chat("Be kind.", (Turn("Hi", "Hello there."), Turn("Bye", "Goodbye.")))
    encoded = ChatEncoder(tokenizer).encode(chat)
    text = tokenizer.decode(
        [i for i, learned in zip(encoded.ids, encoded.learn, strict=True) if learned], skip_special_tokens=False
    )
    assert text == "Hello there.<|im_end|>Goodbye.<|im_end|>"
    assert encoded.ids.count(END_ID) == 5
