"""Document: what every corpus becomes. Paragraphs of sentences; the unit that splits and packing never break."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    """`id` is the digest of the text, so it is the same wherever the document is found."""

    id: str
    paragraphs: tuple[tuple[str, ...], ...]

    @property
    def sentences(self) -> list[str]:
        """All sentences in order."""
        return [sentence for paragraph in self.paragraphs for sentence in paragraph]
