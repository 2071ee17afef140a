"""The leader: one instance executes everything of a cluster lease, from a memory of its own.

The reader fills the due queue, the dispatcher takes what is due for the slots that are free, marks
it in the database and hands it to the runner. The due queue is the only memory: one map of items.
Everything else (the heaps, the slots, the marks) refers to those items.

The state of an item, and who moves it:

                 reader                    dispatcher          runner            completer
                   │                           │                  │                  │
         ┌─────────┴────────┐                  │                  │                  │
         ▼                  ▼                  ▼                  ▼                  ▼
      WAITING ── due ──► READY ─── take ───► MARKED ── call ──► CALLING ─ outcome ► RECORDING
         ▲                  ▲                  │                  │                  │
         │                  │                  └───────────┬──────┴──────────────────┘
         │                  │                              ▼
         │                  │                             DONE
         │                  │                              │
         │                  └── row changed in flight ─────┤
         ├── given back, for a delay ──────────────────────┤
         └── left out by the mark, until the reconcile ────┘

An item that is DONE is never used again. Where its row has to be called again, a new item takes its
place in the map; the arrows at the bottom are these. While a read is under way, an item that has
finished stays in the map, for the read may still bring the row as it was before.

The order of a promotion is fixed: acquire the lease, rebuild the due queue, verify the lease, act.
"""
