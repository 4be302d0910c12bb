"""Turns questions into the many ways that people type them."""

import random
import re

from headrace_engine.demo.corpus import Corpus, normal

_SHORTER = (
    ("I am ", "I'm "),
    ("I would ", "I'd "),
    ("I have ", "I've "),
    ("what is ", "what's "),
    ("who is ", "who's "),
    ("how is ", "how's "),
    ("that is ", "that's "),
    ("it is ", "it's "),
    ("you are ", "you're "),
    ("do not ", "don't "),
    ("does not ", "doesn't "),
    ("is not ", "isn't "),
    ("cannot ", "can't "),
)
_HEADS = (
    (
        "how do I ",
        ("how can I ", "how could I ", "how would I ", "how should I ", "how to ", "how do we ", "how can one "),
    ),
    (
        "how do I ",
        ("tell me how to ", "show me how to ", "what is the way to ", "is there a way to ", "please explain how to "),
    ),
    (
        "how can I ",
        ("how do I ", "how could I ", "how would I ", "how might I ", "is it possible to ", "what do I do to "),
    ),
    ("can you ", ("could you ", "would you ", "will you ", "can you please ", "could you please ", "are you able to ")),
    ("can I ", ("could I ", "may I ", "am I able to ", "is it possible to ", "would I be able to ")),
    ("tell me ", ("please tell me ", "tell us ", "can you tell me ", "could you tell me ", "would you tell me ")),
    ("tell a ", ("please tell a ", "tell us a ", "can you tell a ")),
    ("give me ", ("please give me ", "give us ", "can you give me ", "I want ", "could you give me ")),
    ("show me ", ("please show me ", "show us ", "can you show me ", "let me see ")),
    ("I want to ", ("I would like to ", "I wish to ", "I need to ", "I'd like to ", "let me ")),
    ("I want ", ("I would like ", "I need ", "I'd like ", "we want ", "I really want ")),
    ("I need ", ("I want ", "I would need ", "I really need ", "we need ")),
    ("I am ", ("I am really ", "I think I am ", "we are ")),
    ("I get ", ("I keep getting ", "I am getting ", "we get ", "I always get ")),
    ("I like ", ("I really like ", "I do like ", "we like ")),
    ("why is ", ("why exactly is ", "but why is ", "do you know why is ")),
    ("why do ", ("why exactly do ", "but why do ")),
    ("why does ", ("why exactly does ", "but why does ", "why would ")),
    ("is my ", ("do you know if my ", "can you tell me if my ")),
    ("which ", ("what ", "tell me which ", "and which ", "do you know which ")),
    ("what ", ("which ", "so what ", "tell me what ", "do you know what ")),
    ("who ", ("so who ", "and who ", "tell me who ")),
    ("when ", ("so when ", "tell me when ", "do you know when ")),
    ("where ", ("so where ", "tell me where ", "do you know where ")),
    ("my ", ("our ", "I think my ", "now my ", "today my ")),
    ("you are ", ("I think you are ", "you really are ", "you are really ", "you are a bit ")),
    ("that ", ("I think that ", "well that ", "this ")),
    ("delete ", ("please delete ", "can you delete ")),
    ("create ", ("please create ", "can you create ")),
    ("does ", ("do you know if ", "so does ")),
    ("are you ", ("so are you ", "are you really ", "are you maybe ")),
    ("do you ", ("so do you ", "do you really ", "do you also ", "don't you ")),
)
_SLANG = (
    ("you are ", ("ur ", "u r ", "you r ")),
    ("you", ("u", "ya", "yu")),
    ("your", ("ur", "yer")),
    ("are", ("r",)),
    ("please", ("pls", "plz", "pleas")),
    ("thanks", ("thx", "tnx", "thanx")),
    ("want to", ("wanna",)),
    ("going to", ("gonna",)),
    ("have to", ("gotta",)),
    ("give me", ("gimme",)),
    ("do not know", ("dunno",)),
    ("I am", ("im", "i'm")),
    ("what", ("wat", "wht", "whut")),
    ("with", ("w/", "wit")),
    ("the", ("da", "teh")),
    ("does", ("duz", "do")),
    ("because", ("cuz", "coz")),
    ("something", ("smth", "sth", "somethin")),
    ("somebody", ("sb",)),
    ("tomorrow", ("tmrw",)),
    ("tonight", ("tonite",)),
    ("how do I ", ("how i ", "how do i ", "how I can ", "how to i ", "howto ")),
    ("how can I ", ("how i can ", "how can i ", "how 2 ")),
    ("what is ", ("what's ", "wats ", "whats ", "what be ")),
    ("what does ", ("what do ", "wat does ")),
    ("is there ", ("there is ", "is their ")),
    ("to", ("2", "too")),
    ("for", ("4",)),
)
_ONSETS = (*"bcdfghjklmnprstvwyz", "bl", "cl", "cr", "dr", "fl", "gr", "kn", "pl", "qu", "sh", "sn", "st", "th", "tr")
_VOWELS = ("a", "e", "i", "o", "u", "a", "e", "i", "o", "oo", "ai", "ea", "ou")
_CODAS = ("", "", "", "n", "r", "l", "m", "s", "t", "x", "ck", "ng", "mp", "st", "lity", "tion", "er", "ing")
_PARTS = ("cache", "attention", "parallelism", "batching", "decoding", "queue", "token", "latency", "model", "routing")


class Dresser:
    """Rewrites questions; holds the random stream and the names that are never changed by typing errors."""

    def __init__(self, corpus: Corpus, rng: random.Random) -> None:
        self.rng = rng
        self._prefixes = corpus.prefixes
        self._suffixes = corpus.suffixes
        self._words = corpus.synonyms
        self._twins = {word.lower(): group for group in corpus.synonyms.groups for word in group}
        self._known = {normal(name) for term in corpus.terms for name in term.names}

    def dress(self, text: str) -> str:
        """One way to type `text`: other heads, contractions, greetings, case, punctuation, typing errors."""
        rng = self.rng
        if rng.random() < 0.35:
            text = self._head(text)
        if rng.random() < 0.25:
            text = self._shorter(text)
        if rng.random() < 0.14:
            text = rng.choice(self._prefixes) + text
        if rng.random() < 0.07:
            text = text.rstrip("?!. ") + rng.choice(self._suffixes)
        if rng.random() < 0.05:
            text = self._slang(text)
        if rng.random() < 0.10:
            text = self._typo(text)
            if rng.random() < 0.25:
                text = self._typo(text)
        return self._case(self._mark(text)) or text

    def vary(self, text: str) -> str:
        """Other words for an everyday phrase: synonyms, a small word more or less."""
        rng = self.rng
        words = text.split(" ")
        if rng.random() < 0.35:
            words = [rng.choice(self._twins.get(w.lower(), (w,))) if rng.random() < 0.4 else w for w in words]
        if len(words) > 2 and rng.random() < 0.12:
            words.insert(rng.randrange(1, len(words)), rng.choice(self._words.inserts))
        if len(words) > 3 and rng.random() < 0.10:
            loose = [i for i, word in enumerate(words) if word in self._words.drops]
            if loose:
                del words[rng.choice(loose)]
        if len(words) > 4 and rng.random() < 0.05:
            del words[rng.randrange(len(words))]
        if len(words) > 3 and rng.random() < 0.02:
            at = rng.randrange(len(words) - 1)
            words[at : at + 2] = reversed(words[at : at + 2])
        return " ".join(words)

    def join(self, first: str, second: str) -> str:
        """Two phrases as one message."""
        return first.rstrip("?") + self.rng.choice((", ", ". ", "! ", " and ", " ", ", ")) + second

    def pseudo(self) -> str:
        """A word that nobody knows: an acronym, a made-up word, or a made-up kind of a known thing."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.35:
            word = "".join(rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(rng.randint(2, 5)))
        else:
            word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.randint(1, 3)))
            word += rng.choice(_CODAS)
            if rng.random() < 0.2:
                word = word.capitalize()
            if kind > 0.90:
                word = f"{word} {rng.choice(_PARTS)}"
            elif kind > 0.75:
                word = rng.choice(("a ", "the ", "an ")) + word
        return word if normal(word) not in self._known else self.pseudo()

    def _head(self, text: str) -> str:
        fits = [(old, new) for old, news in _HEADS if text.startswith(old) for new in news]
        if not fits:
            return text
        old, new = self.rng.choice(fits)
        return new + text[len(old) :]

    def _shorter(self, text: str) -> str:
        for old, new in _SHORTER:
            text = text.replace(old, new)
        return text

    def _slang(self, text: str) -> str:
        rng = self.rng
        for old, news in _SLANG:
            if rng.random() < 0.6:
                text = re.sub(rf"\b{re.escape(old.strip())}\b", rng.choice(news).strip(), text)
        return text.replace("'", "") if rng.random() < 0.5 else text

    def _mark(self, text: str) -> str:
        rng = self.rng
        kind = rng.random()
        if kind < 0.45 or not text.strip("?!. "):
            return text
        bare = text.rstrip("?!. ")
        asks = re.match(r"(?i)(what|who|why|how|when|where|which|is|are|do|does|can|could|may|would)\b", bare)
        if kind < 0.75:
            return bare + ("?" if asks else rng.choice(("", ".", "!")))
        return bare + rng.choice(("", "", "?", "??", "!", ".", "...", " ?", "!!"))

    def _case(self, text: str) -> str:
        kind = self.rng.random()
        if kind < 0.40:
            return text
        if kind < 0.72:
            return text[:1].upper() + text[1:]
        if kind < 0.95:
            return text.lower()
        return text.title() if kind < 0.97 else text.upper()

    def _typo(self, text: str) -> str:
        words = text.split(" ")
        long = [i for i, word in enumerate(words) if len(word) > 4 and word.isalpha() and not word.isupper()]
        if not long:
            return text
        at = self.rng.choice(long)
        words[at] = self._misspell(words[at])
        return " ".join(words)

    def _misspell(self, word: str) -> str:
        rng = self.rng
        i = rng.randrange(1, len(word) - 1)
        kind = rng.randrange(4)
        if kind == 0:
            return word[:i] + word[i + 1] + word[i] + word[i + 2 :]
        if kind == 1:
            return word[:i] + word[i + 1 :]
        if kind == 2:
            return word[:i] + word[i] + word[i:]
        return word[:i] + rng.choice("abcdefghijklmnopqrstuvwxyz") + word[i + 1 :]
