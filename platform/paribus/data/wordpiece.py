"""WordPiece by likelihood: merge the pair AB with the highest count(AB) / (count(A) count(B)) until there are enough.

Schuster and Nakajima 2012, "Japanese and Korean voice search": take the merge that raises the likelihood of
the corpus most.  Ties go to the more frequent pair, then to the alphabet, so the same words give the same pieces.
"""

from collections.abc import Mapping

import numpy as np


def train(words: Mapping[str, int], size: int, min_frequency: int) -> list[str]:
    """At most `size` pieces of `words` (each with its count): the single characters, then merges in their order.

    Every character may begin a word, as in the trainer of `tokenizers`. A pair seen fewer than `min_frequency` times is
    not merged. There are more than `size` pieces where the characters alone are more.
    """
    spelt = {word: [word[0], *("##" + letter for letter in word[1:])] for word in sorted(words)}
    pieces = sorted({piece for letters in spelt.values() for piece in letters}.union(*words))
    ids = {piece: id for id, piece in enumerate(pieces)}
    texts = [[ids[letter] for letter in letters] for letters in spelt.values()]
    counts = [words[word] for word in spelt]

    single = np.zeros(max(size, len(pieces)), dtype=np.int64)
    slots: dict[tuple[int, int], int] = {}  # where a pair's count stands in `paired`, its ids in `left` and `right`
    left, right, paired = (np.zeros(4096, dtype=np.int64) for _ in range(3))
    where: list[set[int]] = []  # the words a pair was ever seen in

    def add(number: int, sign: int) -> None:
        """Count the pieces and pairs of a word, or with -1 take them away."""
        nonlocal left, right, paired
        text, count = texts[number], sign * counts[number]
        for id in text:
            single[id] += count
        for pair in zip(text, text[1:], strict=False):
            slot = slots.setdefault(pair, len(slots))
            if slot == len(where):
                where.append(set())
                if slot == len(paired):
                    left, right, paired = (np.concatenate([a, np.zeros_like(a)]) for a in (left, right, paired))
                left[slot], right[slot] = pair
            paired[slot] += count
            where[slot].add(number)

    for number in range(len(texts)):
        add(number, 1)
    while len(pieces) < size:
        possible = np.flatnonzero(paired[: len(slots)] >= min_frequency)
        if not len(possible):
            break
        scores = paired[possible] / (single[left[possible]].astype(float) * single[right[possible]])
        best = possible[scores == scores.max()]
        slot = min(best, key=lambda slot: (-paired[slot], pieces[left[slot]], pieces[right[slot]]))
        a, b = int(left[slot]), int(right[slot])
        merged = ids.setdefault(pieces[a] + pieces[b].removeprefix("##"), len(pieces))
        if merged == len(pieces):
            pieces.append(pieces[a] + pieces[b].removeprefix("##"))
        for number in sorted(where[slot]):
            add(number, -1)
            texts[number] = _replace(texts[number], a, b, merged)
            add(number, 1)
    return pieces


def _replace(text: list[int], a: int, b: int, merged: int) -> list[int]:
    """`text` with every a b, from the left, as `merged`."""
    found: list[int] = []
    for id in text:
        if found and found[-1] == a and id == b:
            found[-1] = merged
        else:
            found.append(id)
    return found
