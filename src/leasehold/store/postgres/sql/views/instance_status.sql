-- The last report of each instance, corrected by what is true now. An instance that has stopped (it said so) or
-- fallen silent is not a leader. A live instance leads only the groups whose leases it holds; its role may lag
-- behind an election by one heartbeat. The view looks up the reported leases by name.
CREATE OR REPLACE VIEW leasehold.instance_status AS
SELECT i.instance_id,
       CASE WHEN clock.is_alive THEN
              CASE WHEN i.role = 'leader' AND now_led.names = '[]' THEN 'follower' ELSE i.role END
            WHEN i.alive_until <= i.last_seen_at + interval '0.1 seconds' THEN 'stopped'
            ELSE 'silent' END AS role,
       clock.is_alive,
       i.started_at, i.last_seen_at, i.alive_until,
       i.detail || CASE WHEN i.detail ? 'leads' THEN jsonb_build_object('leads', now_led.names) ELSE '{}' END AS detail
  FROM leasehold.instances i
 CROSS JOIN LATERAL (SELECT i.alive_until > clock_timestamp() AS is_alive) AS clock
 CROSS JOIN LATERAL (
   SELECT coalesce(jsonb_agg(l.lease_name ORDER BY l.lease_name), '[]') AS names
     FROM jsonb_array_elements_text(CASE jsonb_typeof(i.detail -> 'leads') WHEN 'array' THEN i.detail -> 'leads' ELSE '[]' END)
            AS reported (lease_name)
     JOIN leasehold.leases l ON l.lease_name = reported.lease_name
    WHERE clock.is_alive AND l.holder_id = i.instance_id AND l.expires_at > clock_timestamp()) AS now_led;
COMMENT ON VIEW leasehold.instance_status IS
  'Each instance with its role: leader, follower, standalone, worker, api; stopped or silent if it is not alive.';
REVOKE ALL ON leasehold.instance_status FROM PUBLIC;
GRANT SELECT ON leasehold.instance_status
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;
