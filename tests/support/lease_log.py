"""A log of what happens to the leases of streams, written by triggers in the test's database.

So a test can say what happened before what, without looking at the right moment. Times are counted
in renewals: an instance renews its leases once per heartbeat, and more rarely on a busy machine.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg.rows import DictRow

    from tests.support.database import Database

_INSTALL = """
CREATE TABLE public.lease_log (
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  instance_id text NOT NULL,
  event text NOT NULL,  -- joined, held, renewed, freed, lost
  renewed_at timestamptz
);

CREATE FUNCTION public.log_instance() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  INSERT INTO public.lease_log (instance_id, event) VALUES (NEW.instance_id, 'joined');
  RETURN NULL;
END
$$;
CREATE TRIGGER log_instance AFTER INSERT ON leasehold.instances
  FOR EACH ROW EXECUTE FUNCTION public.log_instance();

CREATE FUNCTION public.log_lease() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  was_held boolean := OLD.expires_at > '-infinity';
  is_held boolean := NEW.expires_at > '-infinity';
  is_taken boolean := NEW.lease_epoch <> OLD.lease_epoch;
BEGIN
  IF was_held AND (is_taken OR NOT is_held) THEN
    INSERT INTO public.lease_log (instance_id, event)
    VALUES (OLD.holder_id, CASE WHEN is_taken THEN 'lost' ELSE 'freed' END);
  END IF;
  IF is_held AND (is_taken OR NOT was_held) THEN
    INSERT INTO public.lease_log (instance_id, event) VALUES (NEW.holder_id, 'held');
  ELSIF is_held AND NEW.renewed_at > OLD.renewed_at THEN
    INSERT INTO public.lease_log (instance_id, event, renewed_at)
    VALUES (NEW.holder_id, 'renewed', NEW.renewed_at);
  END IF;
  RETURN NULL;
END
$$;
CREATE TRIGGER log_lease AFTER UPDATE ON leasehold.leases
  FOR EACH ROW WHEN (NEW.stream IS NOT NULL) EXECUTE FUNCTION public.log_lease();
"""


class LeaseLog:
    """What instances did, in order. A place in the log is the number of an event."""

    def __init__(self, database: Database) -> None:
        self._database = database
        database.execute(_INSTALL)

    def events(self, kind: str | None = None) -> list[DictRow]:
        """Return all events, or those of one kind."""
        return self._database.execute(
            "SELECT * FROM public.lease_log WHERE %s::text IS NULL OR event = %s ORDER BY number",
            [kind, kind],
        )

    def joined(self, name: str) -> int | None:
        """Return the place where an instance first reported; None if it has not yet."""
        events = [one for one in self.events("joined") if one["instance_id"] == name]
        return events[0]["number"] if events else None

    def last(self, name: str, *kinds: str) -> int:
        """Return the place of the last event of these kinds of an instance."""
        own = [one for one in self.events() if one["instance_id"] == name]
        return [one for one in own if one["event"] in kinds][-1]["number"]

    def settled(self, names: Sequence[str], renewals: int, after: int) -> int | None:
        """Return the place of the last hand-over after another place, if each of these instances
        has renewed its leases that often since; None if a stream has changed hands meanwhile.
        """
        [row] = self._database.execute(
            "SELECT last.number, count(renewed.instance_id) AS settled FROM"
            " (SELECT max(number) AS number FROM public.lease_log"
            "   WHERE event IN ('held', 'freed', 'lost')) AS last"
            " LEFT JOIN LATERAL (SELECT instance_id FROM public.lease_log"
            "   WHERE event = 'renewed' AND number > last.number AND instance_id = ANY (%s)"
            "   GROUP BY instance_id HAVING count(DISTINCT renewed_at) >= %s) AS renewed ON true"
            " WHERE last.number > %s GROUP BY last.number",
            [list(names), renewals, after],
        ) or [{"settled": 0}]
        return row["number"] if row["settled"] == len(names) else None

    def held(self) -> dict[str, int]:
        """Return how many streams each instance holds that holds any."""
        held: Counter[str] = Counter()
        for event in self.events():
            held[event["instance_id"]] += {"held": 1, "freed": -1, "lost": -1}.get(
                event["event"], 0
            )
        return dict(+held)

    def renewals(self, name: str, after: int, until: int) -> int:
        """Count how often an instance renewed its leases between two places."""
        times = {
            one["renewed_at"]
            for one in self.events("renewed")
            if one["instance_id"] == name and after < one["number"] < until
        }
        return len(times)
