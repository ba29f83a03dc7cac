"""Turns tokens into text as they come: whole characters only, up to a stop string."""

import codecs

from tinygpt.hf_tokenizer import AnyTokenizer


class TextStream:
    """Turns ids into text. A character of several tokens is shown once it is whole. What may be the
    beginning of the stop string is shown once it is known not to be.
    """

    def __init__(
        self, tokenizer: AnyTokenizer, stop: str | None, end_ids: frozenset[int] = frozenset()
    ) -> None:
        self.text = ""
        """The text so far, without the stop string and what came after it."""
        self.stopped = False
        """Whether the stop string has come, or a token of ``end_ids``."""
        self._tokenizer, self._stop, self._end_ids = tokenizer, stop or "", end_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._shown = 0

    def feed(self, token_id: int) -> str:
        """What can be shown now that ``token_id`` has come."""
        if token_id in self._end_ids and not self.stopped:
            rest = self.end()
            self.stopped = True
            return rest
        return self._take(self._decoder.decode(self._tokenizer.decode_bytes([token_id])))

    def end(self) -> str:
        """What is left to be shown once no more tokens come."""
        rest = self._take(self._decoder.decode(b"", final=True))
        return rest + self._show(len(self.text))

    def _take(self, new: str) -> str:
        if self.stopped:
            return ""
        looked_at = max(0, len(self.text) - len(self._stop))
        self.text += new
        at = self.text.find(self._stop, looked_at) if self._stop else -1
        if at >= 0:
            self.text, self.stopped = self.text[:at], True
            return self._show(at)
        lengths = range(min(len(self._stop), len(self.text)), 0, -1)
        held = next((n for n in lengths if self.text.endswith(self._stop[:n])), 0)
        return self._show(len(self.text) - held)

    def _show(self, until: int) -> str:
        shown, self._shown = self.text[self._shown : until], max(self._shown, until)
        return shown
