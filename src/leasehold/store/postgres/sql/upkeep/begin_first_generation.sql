-- Remember which database this is, once. A restored database keeps what it remembers: begin_generation must notice.
INSERT INTO leasehold.generations (generation_no, token_floor, database_identity, cause, began_by, note, ready_at)
SELECT 1, 0, leasehold.read_database_identity(), 'created', session_user, 'the schema was created', clock_timestamp()
 WHERE NOT EXISTS (SELECT FROM leasehold.generations)
    ON CONFLICT DO NOTHING;
