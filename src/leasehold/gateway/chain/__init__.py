"""The account on a chain: what to do about its transactions. Not a gateway kind yet."""
