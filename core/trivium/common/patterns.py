"""Name patterns: regular expressions that cost time in proportion to the name, whatever they are.

Clients can set policies, and an engine that backtracks would let one of them stop the broker with
a pattern such as ``(a+)+$``. This one follows all possibilities at once (Thompson's construction):
a pattern becomes states, and a name is read once, with the set of the states it may be in.

Supported, with their usual meaning: characters, ``.``, ``[a-z]``, ``[^a-z]``, ``\\d \\w \\s`` and
their opposites, ``^`` and ``$``, groups, ``|``, ``* + ? {m} {m,} {m,n}``. There are no
back-references and no look-around.
"""

from __future__ import annotations

from typing import Final

#: Longest pattern in characters, most states that it may have (repetitions multiply them), and
#: deepest nesting of groups.
MAX_LENGTH: Final = 1024
MAX_STATES: Final = 4096
MAX_DEPTH: Final = 32

_SEQUENCE: Final = 0
_CHOICE: Final = 1
_REPEAT: Final = 2
_CHARACTERS: Final = 3
_START: Final = 4
_END: Final = 5

_SPLIT: Final = 6
_MATCH: Final = 7

#: ``_Node.high`` of a repetition without a limit
_NO_LIMIT: Final = -1

_CLASSES: Final = "dDwWsS"
_CONTROLS: Final = {"n": "\n", "r": "\r", "t": "\t"}


class PatternError(ValueError):
    """The pattern cannot be used; the text says why."""


class _Characters:
    """A set of characters."""

    def __init__(self) -> None:
        self.ranges: list[tuple[str, str]] = []
        #: letters of the classes among them, such as ``d``
        self.classes = ""
        self.is_negated = False

    def has(self, character: str) -> bool:
        found = any(low <= character <= high for low, high in self.ranges) or any(
            _is_in_class(character, name) for name in self.classes
        )
        return found != self.is_negated


def _is_in_class(character: str, name: str) -> bool:
    if name.isupper():
        return not _is_in_class(character, name.lower())
    if name == "d":
        return character.isdecimal()
    if name == "s":
        return character.isspace()
    return character.isalnum() or character == "_"


class _Node:
    """A part of the pattern."""

    def __init__(
        self,
        kind: int,
        parts: list[_Node] | None = None,
        characters: _Characters | None = None,
        low: int = 0,
        high: int = 0,
    ) -> None:
        self.kind = kind
        self.parts: list[_Node] = [] if parts is None else parts
        self.characters = characters
        self.low = low
        self.high = high


class _Parser:
    """Reads a pattern."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def parse(self) -> _Node:
        node = self._choice()
        if self._at < len(self._text):
            raise PatternError("unbalanced parenthesis")
        return node

    def _peek(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _take(self) -> str:
        if self._at >= len(self._text):
            raise PatternError("it ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _choice(self) -> _Node:
        parts = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else _Node(_CHOICE, parts)

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(self._atom()))
        return _Node(_SEQUENCE, parts)

    def _repeated(self, node: _Node) -> _Node:
        bounds = self._bounds()
        if bounds is None:
            return node
        if self._peek() == "?":
            # As few as possible rather than as many: whether it matches is the same.
            self._at += 1
        if self._bounds() is not None:
            raise PatternError("multiple repeat")
        low, high = bounds
        if high != _NO_LIMIT and high < low:
            raise PatternError("a repetition's minimum is above its maximum")
        return _Node(_REPEAT, [node], None, low, high)

    def _bounds(self) -> tuple[int, int] | None:
        """A repetition, taken; None where there is none."""
        character = self._peek()
        if character == "{":
            return self._braces()
        if not character or character not in "*+?":
            return None
        self._at += 1
        return (1 if character == "+" else 0, 1 if character == "?" else _NO_LIMIT)

    def _braces(self) -> tuple[int, int] | None:
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : max(end, self._at)].partition(",")
        if end < 0 or not (low or comma) or not all(_is_number(part) for part in (low, high)):
            # An ordinary brace.
            return None
        self._at = end + 1
        first = int(low or "0")
        if not comma:
            return first, first
        return first, int(high) if high else _NO_LIMIT

    def _atom(self) -> _Node:
        character = self._take()
        if character == "(":
            return self._group()
        if character == "[":
            return _Node(_CHARACTERS, None, self._set())
        if character == "^":
            return _Node(_START)
        if character == "$":
            return _Node(_END)
        if character in "*+?":
            raise PatternError("nothing to repeat")
        found = _Characters()
        if character == ".":
            found.is_negated = True
            found.ranges.append(("\n", "\n"))
        elif character == "\\":
            self._escape(found)
        else:
            found.ranges.append((character, character))
        return _Node(_CHARACTERS, None, found)

    def _group(self) -> _Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise PatternError(f"groups are nested deeper than {MAX_DEPTH}")
        if self._peek() == "?":
            self._at += 1
            if self._take() != ":":
                raise PatternError("of the groups that begin with (? there is only (?:")
        node = self._choice()
        if self._peek() != ")":
            raise PatternError("missing )")
        self._at += 1
        self._depth -= 1
        return node

    def _escape(self, found: _Characters) -> str:
        """What follows a backslash; the character, or nothing for a class."""
        character = self._take()
        if character in _CLASSES:
            found.classes += character
            return ""
        if character in _CONTROLS:
            character = _CONTROLS[character]
        elif character.isalnum():
            raise PatternError(f"\\{character} is not supported")
        found.ranges.append((character, character))
        return character

    def _set(self) -> _Characters:
        found = _Characters()
        if self._peek() == "^":
            self._at += 1
            found.is_negated = True
        is_first = True
        while True:
            character = self._take()
            if character == "]" and not is_first:
                return found
            is_first = False
            if character == "\\":
                character = self._escape(found)
            else:
                found.ranges.append((character, character))
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                last = self._take()
                if last == "\\":
                    last = self._escape(found)
                if not character or not last or last < character:
                    raise PatternError("bad character range")
                found.ranges.append((character, last))


def _is_number(text: str) -> bool:
    return text.isascii() and (text.isdecimal() or not text) and len(text) <= 4


class Pattern:
    """A pattern, ready to be matched. Raises PatternError, also for more than ``most_states``."""

    def __init__(self, text: str, most_states: int = MAX_STATES) -> None:
        if len(text) > MAX_LENGTH:
            raise PatternError("it is too long")
        self.text = text
        # By state: what it is, where it leads, where else a split leads, what it reads.
        self._kinds: list[int] = []
        self._next: list[int] = []
        self._other: list[int] = []
        self._characters: list[_Characters | None] = []
        self._built = 0
        self._most_states = most_states
        self._first = self._build(_Parser(text).parse(), self._state(_MATCH, 0))

    def _state(self, kind: int, follows: int, characters: _Characters | None = None) -> int:
        self._kinds.append(kind)
        self._next.append(follows)
        self._other.append(follows)
        self._characters.append(characters)
        return len(self._kinds) - 1

    def _build(self, node: _Node, follows: int) -> int:
        """The first state of ``node`` when ``follows`` comes behind it."""
        # Every state is built by a call of its own, or two; empty parts have none.
        self._built += 1
        if self._built > self._most_states:
            raise PatternError("its repetitions are too many")
        if node.kind == _SEQUENCE:
            for part in reversed(node.parts):
                follows = self._build(part, follows)
            return follows
        if node.kind == _CHOICE:
            first = self._build(node.parts[-1], follows)
            for part in reversed(node.parts[:-1]):
                split = self._state(_SPLIT, self._build(part, follows))
                self._other[split] = first
                first = split
            return first
        if node.kind == _REPEAT:
            return self._build_repeat(node, follows)
        return self._state(node.kind, follows, node.characters)

    def _build_repeat(self, node: _Node, follows: int) -> int:
        part = node.parts[0]
        first = follows
        if node.high == _NO_LIMIT:
            first = self._state(_SPLIT, follows)
            self._next[first] = self._build(part, first)
        for _ in range(node.high - node.low):
            split = self._state(_SPLIT, follows)
            self._next[split] = self._build(part, first)
            first = split
        for _ in range(node.low):
            first = self._build(part, first)
        return first

    def matches(self, name: str) -> bool:
        """Whether the pattern occurs anywhere in ``name``."""
        size = len(name)
        # The position for which a state was added last, so that each is added once.
        added = [-1] * len(self._kinds)
        states: list[int] = []
        for position in range(size + 1):
            if self._add(self._first, position, size, states, added):
                return True
            if position == size:
                break
            character = name[position]
            reached: list[int] = []
            for state in states:
                characters = self._characters[state]
                assert characters is not None
                if characters.has(character) and self._add(
                    self._next[state], position + 1, size, reached, added
                ):
                    return True
            states = reached
        return False

    def _add(
        self, state: int, position: int, size: int, states: list[int], added: list[int]
    ) -> bool:
        """Add the reading states that can be reached from ``state`` without reading; whether the
        end of the pattern can."""
        pending = [state]
        while pending:
            state = pending.pop()
            if added[state] == position:
                continue
            added[state] = position
            kind = self._kinds[state]
            if kind == _MATCH:
                return True
            if kind == _CHARACTERS:
                states.append(state)
            elif kind == _SPLIT:
                pending.append(self._other[state])
                pending.append(self._next[state])
            elif (kind == _START and position == 0) or (kind == _END and position == size):
                pending.append(self._next[state])
        return False


def literal(text: str) -> str:
    """A part of a pattern that is ``text``, whatever characters it has."""
    return "".join(each if each.isalnum() else "\\" + each for each in text)
