"""Helpers that several test folders share.

Servers and databases:
    servers              PostgreSQL servers, one per installed version; template database and logins
    database             the database of one test and its connections, one login per role
    outbox               verbs of the database tests: publish, enqueue, claim, complete, expire
    lease_holder         a holder of a cluster or stream lease that may be stale
    sessions             sessions stepped through an interleaving: run, start, assert_blocked
    mutants              a function of the schema, broken on purpose
    race                 many callers at the same moment, each with its own sessions
    sqlstates            assert the SQLSTATE that a statement is refused with
    caller_transactions  the caller's transaction in psycopg, SQLAlchemy, Django and asyncpg
    backlog              200,000 pending rows and 1,000,000 ledger rows, for plan tests
    query_plans          the query plans of a call, including statements inside functions
    schema_catalog       the schema as sorted lines, to compare two databases
    sql_tree             a small SQL folder, for tests of migration

Processes:
    engine               worker processes on the test's database; `until` polls for a condition
    engine_fixtures      the fixtures engine, sandbox and postgres, for folders that start workers
    failover             clusters that a test copies, promotes and loses; dumps of a database
    restartable_engine   workers on a server that the test stops and starts again
    elections            start a leader, read its lease, keep work coming, check who executed what
    lease_log            what happens to the leases of streams, in order, written by triggers
    expiring_streams     the two expiries of a stream's lease, which come when a test says so
    stream_orders        enqueue into streams, and read in which order the gateway saw them
    faulty_worker        a worker that is killed, stopped or blocked at a fault point
    python_gateways      Python gateways that block or ignore cancellation
    courier              a kind of gateway that the product does not know, and `leasehold` with it
    leaky_gateways       Python gateways that return secrets and content of the intent
    unimportable_gateways  a module whose import fails with a secret in its error
    serve_process        `leasehold serve` in a subprocess
    cli_process          any `leasehold` command to its end, as the program or in a fork
    forked_process       a process that need not import our modules again
    forking_program      a program that enqueues from forked processes with what it opened before
    demo_process         `leasehold demo` on a pipe or a pseudo-terminal
    skewed_clock/        a sitecustomize that shifts the wall clock of a process
    suspended_machine    lets the machine of this process have been suspended

Network:
    api                  the HTTP API in the test's event loop, and clients with tokens
    hostile_requests     requests that must be refused and must not change anything
    http_gateways        a submission, an HTTP contract and gateway, and a raw HTTP server
    held_gateway         a gateway that notes what it receives, and answers when a test says so
    certificates         self-signed certificates
    raw_http             bytes over a TCP connection to an HTTP server
    tcp_proxy            a proxy before the database that cuts or blackholes connections
    pooler               pgbouncer in transaction mode

Values and tools:
    claimed_item         a claimed item without a database
    passing_time         time passes without waiting: timeouts of calls are due at once
    log_stream           the logs of the test process as a stream, restored afterwards
    metric_labels        the label names of a metric
    ram_disk             where throwaway servers keep their data
    required_programs    skip tests whose external program is missing
    install_programs.sh  `make test-programs`
    steady               `make test-steady`: the whole suite several times, also on a busy machine
    xdist_order          which worker of pytest-xdist runs which test, and when
    reference            `make reference`: writes docs/reference/functions.md
    settings_reference   `make reference`: writes docs/reference/settings.md
    sync_client          `make generate`: writes the sync client from the async one
    openapi              `make openapi`: writes docs/reference/openapi.json
    openapi_clients/     programs for the clients that other tools generate, and those tools, pinned
"""
