"""The command line's parser: of a typing mistake it says what may be meant."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """Parsers of verbs are of this class too. fill: adds options when it is first used."""

    fill: Callable[[Parser], None] | None = None

    def fill_in(self) -> Parser:
        """With all its options."""
        if self.fill:
            fill, self.fill = self.fill, None
            fill(self)
        return self

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As its base."""
        return super(Parser, self.fill_in()).parse_known_args(args, namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As its base; an option that a verb does not know is told by that verb's parser."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self._of(getattr(found, "verb", "")).error(f"unrecognized arguments: {' '.join(unknown)}")
        return found

    def _of(self, verb: str) -> Parser:
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and verb in action.choices:
                chosen = action.choices[verb]
                assert isinstance(chosen, Parser)
                return chosen
        return self

    def error(self, message: str) -> NoReturn:
        """Ends with exit code 2, and a suggestion where something is close."""
        known = [option for option in self._option_string_actions if option.startswith("--")]
        words = re.findall(r"--[\w-]+", message) if "unrecognized" in message else []
        if choice := re.search(r"invalid choice: '([^']*)'", message):
            words, known = [choice[1]], [each for action in self._actions for each in (action.choices or ())]
        close = [difflib.get_close_matches(word, known, 1) for word in words]
        meant = ", ".join(found[0] for found in close if found)
        super().error(f"{message}; did you mean {meant}?" if meant else message)
