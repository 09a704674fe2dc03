"""The trainers here behind ``protocol.Trainer``: the local engine, OpenRLHF, TRL."""
