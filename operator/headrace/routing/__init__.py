"""Which endpoint a request goes to. Pure: load ledger, breakers and the choice; time is an argument."""
