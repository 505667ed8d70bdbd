"""From a question to the work it takes: arms, runs, stages. Pure functions; the only input is the vocabulary."""
