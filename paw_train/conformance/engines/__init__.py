"""This project's trainers behind ``protocol.Trainer``: the local engine and OpenRLHF."""
