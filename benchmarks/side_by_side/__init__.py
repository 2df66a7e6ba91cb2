"""The parts of `benchmarks/run`: the plan (`cases`), the loaders (`sides`), their data (`data`, `photos`), the
measuring (`measure`), the output (`results`, `table`, `plots`, `svg`), and the prediction for more cores (`scaling`,
with the simulation in `protocol`)."""
