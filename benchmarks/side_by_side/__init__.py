"""What `benchmarks/run` is made of: the plan (`cases`), who takes part (`sides`), what they load (`data`, `photos`),
the measuring (`measure`), and what is made of the figures (`results`, `table`, `plots`, `svg`), and what
more cores would bring (`scaling`, and `protocol`, the simulation)."""
