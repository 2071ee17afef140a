-- Create the ledger's partitions for this month and the next three. Every running instance does it too.
SELECT leasehold.create_ledger_partitions(3);
