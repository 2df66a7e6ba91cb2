"""Tests the simulation with cases whose results are known without it.

    python3 -m unittest discover -s benchmarks/side_by_side -t benchmarks
"""

import math
import unittest

from side_by_side import scaling
from side_by_side.protocol import Costs, bound, simulate, steady


def each(work: float):
    return lambda number: work


class Limits(unittest.TestCase):
    def assert_rate(self, costs: Costs, workers: int, expected: float, **options):
        rate, _ = steady(costs, workers, **options)
        self.assertAlmostEqual(rate / expected, 1, delta=0.01)

    def test_workers_bound_until_main_does(self):
        costs = Costs(main=10, work=each(1000))
        for workers in (1, 2, 10, 99):
            self.assert_rate(costs, workers, workers * 1e3)
        for workers in (101, 128):
            self.assert_rate(costs, workers, 1e5)

    def test_memory_bounds(self):
        # A core copies a batch in 1,000 us, and memory is as fast as four cores.
        costs = Costs(main=1, work=each(0), bytes=1e6, core_rate=1e3, memory_rate=4e3)
        for workers, expected in ((1, 1e3), (3, 3e3), (4, 4e3), (16, 4e3)):
            self.assert_rate(costs, workers, expected)
        _, outcome = steady(costs, 16)
        self.assertGreater(outcome.memory_busy, 0.98)

    def test_work_and_copies_overlap_between_workers(self):
        costs = Costs(main=1, work=scaling.varied(3000), bytes=1e6, core_rate=1e3, memory_rate=2e3)
        for workers, expected in ((1, 250), (4, 1000), (32, 2000)):
            rate, _ = steady(costs, workers)
            # More than two workers may copy at once, even if two do on average.
            self.assertAlmostEqual(rate / expected, 1, delta=0.1)
            self.assertLess(rate, 1.01 * expected)

    def test_a_window_of_one_waits_for_main(self):
        costs = Costs(main=100, work=each(300))
        self.assert_rate(costs, 1, 1e6 / 400, prefetch_factor=1)
        self.assert_rate(costs, 1, 1e6 / 300, prefetch_factor=2)

    def test_cores_are_shared(self):
        costs = Costs(main=100, work=each(900))
        for cores, expected in ((1, 1000), (2, 500), (4, 250), (64, 100)):
            outcome = simulate(costs, 16, 2000, cores=cores)
            self.assertAlmostEqual(outcome.between(400, 1900) / expected, 1, delta=0.02)

    def test_copies_need_cores_too(self):
        costs = Costs(main=0.1, work=each(0), bytes=1e6, core_rate=1e3, memory_rate=1e5)
        outcome = simulate(costs, 8, 800, cores=2)
        self.assertAlmostEqual(outcome.between(160, 760) / 500, 1, delta=0.02)

    def test_never_above_the_bound(self):
        for main in (1, 50):
            for work in (20, 5000):
                for workers in (1, 3, 8, 40):
                    costs = Costs(main=main, work=each(work), bytes=1e6, core_rate=2e3, memory_rate=1e4)
                    rate, _ = steady(costs, workers)
                    self.assertLess(rate, 1.001 * bound(costs, workers, work))


class Order(unittest.TestCase):
    def test_all_are_returned(self):
        outcome = simulate(Costs(main=1, work=each(10)), 3, 10)
        self.assertEqual(len(outcome.returned), 10)
        self.assertEqual(outcome.returned, sorted(outcome.returned))

    def test_what_waits_behind_a_slow_batch_is_moved(self):
        # Batch 0 takes 100 ms. The other worker loads batches 2, 4 and 6, which wait behind it, in the meantime.
        slow = Costs(main=1, work=lambda number: 100e3 if number == 0 else 1e3, sleeps=True)
        outcome = simulate(slow, 2, 8, prefetch_factor=4)
        self.assertLess(outcome.returned[-1], 101e3)

    def test_a_short_wait_moves_nothing(self):
        quick = Costs(main=1, work=lambda number: 900 if number == 0 else 100, sleeps=True)
        outcome = simulate(quick, 2, 8, prefetch_factor=4)
        self.assertGreater(outcome.returned[-1], 900 + 3 * 100)

    def test_the_same_again(self):
        costs = Costs(main=3, work=lambda number: 50 + number * 7919 % 101, bytes=1e4, core_rate=1e3, memory_rate=3e3)
        runs = [simulate(costs, 7, 500, cores=4) for _ in range(2)]
        self.assertEqual(runs[0], runs[1])


class Knees(unittest.TestCase):
    def test_where_main_is_full(self):
        workload = scaling.Workload("batch", lambda workers: Costs(main=10, work=each(160)), 160)
        found = scaling.predict(workload)
        # Main can serve 16 workers at most, and 15 workers reach 90 % of that.
        self.assertEqual((found["knee"], found["bound"]), (15, "main"))

    def test_beyond_what_is_simulated(self):
        workload = scaling.Workload("batch", lambda workers: Costs(main=1, work=each(1e6)), 1e6)
        found = scaling.predict(workload)
        self.assertEqual((found["knee"], found["bound"]), (None, "workers"))

    def test_memory(self):
        copies = Costs(main=1, work=each(0), bytes=1e6, core_rate=1e3, memory_rate=8e3)
        found = scaling.predict(scaling.Workload("batch", lambda workers: copies, 0))
        self.assertEqual((found["knee"], found["bound"]), (8, "memory"))

    def test_costs_of_main_between_what_was_measured(self):
        main = scaling.MainCost({1: 4.0, 2: 2.0, 4: 3.0, 8: 5.0})
        # With one worker the cost is at most that with two.
        self.assertEqual([main.at(workers) for workers in (1, 2, 3, 6, 8, 99)], [2.0, 2.0, 2.5, 4.0, 5.0, 5.0])


class Sums(unittest.TestCase):
    def test_slow_samples_take_what_the_benchmark_says(self):
        whole = sum(scaling.slow_batch(number) for number in range(200))
        samples = range(200 * scaling.SLOW_BATCH_SIZE)
        slow = sum(index * 2654435761 % 2**32 % 100 == 7 for index in samples)
        self.assertTrue(math.isclose(whole, 4e3 * (len(samples) + 49 * slow)))


if __name__ == "__main__":
    unittest.main()
