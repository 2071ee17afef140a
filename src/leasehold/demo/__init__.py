"""The demo: `leasehold demo` runs the whole product on one machine, and audits the result.

    cli/demo.py    options, the embedded PostgreSQL, the exit code
      |
      v
    run.py         starts everything, runs the timeline, stops in order; Ctrl-C and SIGTERM
      |
      +- processes.py   the child processes: `leasehold sandbox`, `worker` (several), `serve`
      +- traffic.py     the demo's targets, its sample intents, the client of the sandbox gateway
      +- kill.py        --kill: kills a worker and follows the recovery of its claims
      +- database.py    a database of its own for each run, and queries for the view and the audit
      +- view.py        the live view in a terminal, or plain lines
      +- audit.py       the summary: intents in the database compared with effects at the gateway

A run:

    start  ->  enqueue and show, for --for seconds or until Ctrl-C  ->  wait until all is finished
           ->  stop the API and the workers  ->  audit  ->  stop the gateway and the database

A first Ctrl-C skips to "stop"; a second one kills all child processes.
"""
