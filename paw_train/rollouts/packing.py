"""Dialogues that branched from one another as one row, so that a forward pass reads what they share once.

A packed row holds the first dialogue as it is, and behind it what each branch has of its own. A branch
sees the tokens that it shares with its parent and its own, none of its siblings', and its positions go on
from where it branched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from paw_train.rollouts.tokens import Branch, Span, StepSpans, TokenRow

_KEYS = 4
"""keys of a packed row, of its limit of tokens"""


def packed(
    rows: Sequence[TokenRow],
    whole: Sequence[TokenRow],
    parents: Sequence[int | None],
    limit: int,
) -> list[TokenRow]:
    """The rows of dialogues, those of branches packed into those of their parents.

    The last token that a branch shares is read again as its first, because what it predicts there is the
    branch's.

    Args:
        rows: [E] one for each dialogue, truncated after the last token in use; not changed.
        whole: [E] the same before they were truncated.
        parents: [E] number of the dialogue that each branched from, lower than its own; ``None``: none.
        limit: most tokens of a packed row, and a quarter of the keys that its parts attend to, of which
            each has its own copy. A branch that does not fit is a row of its own, with all that it shares,
            and takes in its siblings.

    Returns:
        At most E rows with all steps.
    """
    lengths = _lengths(rows, whole, parents)
    contexts = [_context(row) - 1 for row in whole]
    # by parent: branches that are rows of their own
    apart: dict[int, list[int]] = defaultdict(list)
    hosts: list[_Host] = []
    paths: list[list[Span]] = []  # where in its host each dialogue lies
    found: list[TokenRow] = []
    for number, parent in enumerate(parents):
        row, ids, shared = rows[number], whole[number].ids[: lengths[number]], contexts[number]
        # a branch that stands apart holds as much of the parent as it shares itself
        holders = [] if parent is None else [parent, *apart[parent]]
        able = (n for n in holders if n == parent or contexts[n] >= shared)
        place = next((n for n in able if hosts[n].fits(len(ids), shared, limit)), None)
        if place is None:
            if parent is not None:
                apart[parent].append(number)
            host = _Host(TokenRow(ids, list(row.steps), row.prompt_tokens_cut))
            found.append(host.row)
            paths.append([(0, len(ids))])
        else:
            host = hosts[place]
            before = _beginning(paths[place], shared)
            span = host.row.extend(ids[shared:])
            host.row.steps += [_shifted(step, span[0] - shared) for step in row.steps]
            host.row.branches.append(Branch(span, before))
            paths.append([*before, span])
        host.keys += len(ids)
        hosts.append(host)
    return found


@dataclass(slots=True)
class _Host:
    """A row that branches are packed into."""

    row: TokenRow
    keys: int = 0
    """tokens that its parts attend to, each part's for itself"""

    def fits(self, tokens: int, shared: int, limit: int) -> bool:
        """Whether there is room for a branch of so many tokens, of which it shares the first."""
        # keys and values of a token are about a tenth of what a training pass keeps of it
        room = len(self.row.ids) + tokens - shared <= limit
        return room and self.keys + tokens <= _KEYS * limit


def _context(row: TokenRow) -> int:
    """Tokens before the first response that is the dialogue's own."""
    return row.steps[0].action[0]


def _lengths(
    rows: Sequence[TokenRow], whole: Sequence[TokenRow], parents: Sequence[int | None]
) -> list[int]:
    """[E] tokens of each dialogue that it or a branch of it reads."""
    lengths = [len(row.ids) for row in rows]
    for number in reversed(range(len(rows))):
        parent = parents[number]
        if parent is not None:
            lengths[parent] = max(lengths[parent], _context(whole[number]) - 1)
    return lengths


def _beginning(path: Sequence[Span], tokens: int) -> list[Span]:
    """The first tokens of a dialogue that lies in these spans."""
    found: list[Span] = []
    for start, end in path:
        taken = min(end - start, tokens)
        if taken:
            found.append((start, start + taken))
        tokens -= taken
    return found


def _shifted(step: StepSpans, by: int) -> StepSpans:
    moved = [(start + by, end + by) for start, end in step.spans]
    gone = [(start + by, end + by) for start, end in step.left_out]
    return replace(step, action=moved[0], observation=moved[1], later=moved[2:], left_out=gone)
