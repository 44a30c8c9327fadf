"""The objectives of this package inside other trainers, TRL and verl, which write the same run folder."""
