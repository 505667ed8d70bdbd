"""Where sentences end. Rules for English-like prose; the same splitter feeds every input format and every task."""

import re

# A full stop after one of these does not end a sentence.
_ABBREVIATIONS = frozenset(
    "mr mrs ms dr messrs hon rev gen col capt lieut lt sgt gov sen rep prof st mt jr sr no nos vol art sec inc co corp "
    "vs etc al fig ed dept est approx cf e.g i.e a.m p.m u.s u.k u.n u.s.a d.c "
    "jan feb mar apr jun jul aug sept oct nov dec".split()
)
# Sentence punctuation, closing quotes or brackets, white space, then what may open a sentence.
_END = re.compile(r"""[.!?]+["'”’)\]]*(?=\s+["'“‘(\[]*[A-Z0-9])""")


def split(paragraph: str) -> list[str]:
    """The sentences of a paragraph, white space folded. Joining them with blanks gives the paragraph back."""
    text = " ".join(paragraph.split())
    found, start = [], 0
    for match in _END.finditer(text):
        if text[match.start()] == "." and _abbreviated(text[start : match.start()]):
            continue
        found.append(text[start : match.end()])
        start = match.end() + 1
    if start < len(text):
        found.append(text[start:])
    return found


def _abbreviated(before: str) -> bool:
    """Whether the word before a full stop is an abbreviation or a single initial."""
    word = before.rsplit(" ", 1)[-1].lstrip("\"'“‘([")
    return word.lower() in _ABBREVIATIONS or (len(word) == 1 and word.isalpha() and word != "I")
