-- Trigger function: refuse changes to append-only tables, for every role including the owner. Retention does
-- not need such changes: it drops whole partitions of the ledger, and deletes intents, which nobody may update.
-- Locks nothing.
-- Raises: P0001, always.
CREATE OR REPLACE FUNCTION leasehold.refuse_change() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP
    USING ERRCODE = 'P0001', HINT = 'Write a new row through the functions of the leasehold schema.';
END
$$;
REVOKE ALL ON FUNCTION leasehold.refuse_change() FROM PUBLIC;

CREATE OR REPLACE TRIGGER outbox_attempts_append_only
  BEFORE UPDATE OR DELETE ON leasehold.outbox_attempts
  FOR EACH ROW EXECUTE FUNCTION leasehold.refuse_change();
CREATE OR REPLACE TRIGGER outbox_attempts_no_truncate
  BEFORE TRUNCATE ON leasehold.outbox_attempts
  FOR EACH STATEMENT EXECUTE FUNCTION leasehold.refuse_change();
CREATE OR REPLACE TRIGGER outbox_attempts_default_no_truncate
  BEFORE TRUNCATE ON leasehold.outbox_attempts_default
  FOR EACH STATEMENT EXECUTE FUNCTION leasehold.refuse_change();
CREATE OR REPLACE TRIGGER contracts_insert_only
  BEFORE UPDATE OR DELETE ON leasehold.contracts
  FOR EACH ROW EXECUTE FUNCTION leasehold.refuse_change();
CREATE OR REPLACE TRIGGER contracts_no_truncate
  BEFORE TRUNCATE ON leasehold.contracts
  FOR EACH STATEMENT EXECUTE FUNCTION leasehold.refuse_change();
CREATE OR REPLACE TRIGGER intents_insert_only
  BEFORE UPDATE ON leasehold.intents
  FOR EACH ROW EXECUTE FUNCTION leasehold.refuse_change();
-- Except for the lease of a stream that nobody holds; see prune_streams.
CREATE OR REPLACE TRIGGER leases_never_deleted
  BEFORE DELETE ON leasehold.leases
  FOR EACH ROW WHEN (OLD.stream IS NULL OR OLD.expires_at > '-infinity') EXECUTE FUNCTION leasehold.refuse_change();
CREATE OR REPLACE TRIGGER leases_no_truncate
  BEFORE TRUNCATE ON leasehold.leases
  FOR EACH STATEMENT EXECUTE FUNCTION leasehold.refuse_change();
CREATE OR REPLACE TRIGGER stream_interventions_append_only
  BEFORE UPDATE OR DELETE ON leasehold.stream_interventions
  FOR EACH ROW EXECUTE FUNCTION leasehold.refuse_change();
CREATE OR REPLACE TRIGGER stream_interventions_no_truncate
  BEFORE TRUNCATE ON leasehold.stream_interventions
  FOR EACH STATEMENT EXECUTE FUNCTION leasehold.refuse_change();
CREATE OR REPLACE TRIGGER intent_interventions_append_only
  BEFORE UPDATE OR DELETE ON leasehold.intent_interventions
  FOR EACH ROW EXECUTE FUNCTION leasehold.refuse_change();
CREATE OR REPLACE TRIGGER intent_interventions_no_truncate
  BEFORE TRUNCATE ON leasehold.intent_interventions
  FOR EACH STATEMENT EXECUTE FUNCTION leasehold.refuse_change();
CREATE OR REPLACE TRIGGER api_tokens_insert_only
  BEFORE UPDATE OF name, token_hash, scopes, targets, created_at, created_by OR DELETE
  ON leasehold.api_tokens
  FOR EACH ROW EXECUTE FUNCTION leasehold.refuse_change();
CREATE OR REPLACE TRIGGER api_tokens_revocation_is_final
  BEFORE UPDATE ON leasehold.api_tokens
  FOR EACH ROW WHEN (OLD.revoked_at IS NOT NULL) EXECUTE FUNCTION leasehold.refuse_change();
CREATE OR REPLACE TRIGGER api_tokens_no_truncate
  BEFORE TRUNCATE ON leasehold.api_tokens
  FOR EACH STATEMENT EXECUTE FUNCTION leasehold.refuse_change();
