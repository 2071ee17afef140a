"""What to do after a refused operation, by its verdict: for the commands and for the API."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_OF_A_CALL = {
    "in_doubt": "A call may have had its effect. Resolve the intent instead.",
    "confirming": "The gateway already has it. Resolve the intent instead.",
    "already_terminal": "The intent is finished.",
}
INTENT_ADVICE: Mapping[str, str] = {
    **_OF_A_CALL,
    "in_flight": "An attempt is in progress. Try again when its claim has ended.",
    "held": "It waits for a person. Resolve the intent instead.",
    "already_due": "It is due: it is called as soon as its target takes calls.",
    "scheduled": "It was enqueued for a later time and was not tried yet.",
    "behind_head": "An earlier intent of its stream comes first.",
    "paused": "Its stream is paused. Resume the stream instead.",
    "not_in_doubt": "The intent is not in doubt.",
    "not_found": "There is no intent with this id.",
    "already_accepted": "The gateway accepted it, so there is nothing to retry.",
    "already_redriven": "It was redriven before.",
    "not_terminal": "The intent is not finished yet.",
    "unknown_target": "Its target has no published contract any more.",
}
STREAM_ADVICE: Mapping[str, str] = {
    **_OF_A_CALL,
    "not_found": "There is no such stream, or no such intent in it. The status of an intent "
    "names both.",
    "not_paused": "The stream is not paused for this reason. Name one of its pauses: a failed "
    "intent (`paused_for`) or another person (`paused_by`).",
    "not_head": "Another intent is at the head now.",
    "in_flight": "A call for the head is in progress. Try again when it has ended.",
}
