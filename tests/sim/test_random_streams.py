from holdfast.sim.random_streams import stream, streams_of


def draws(*name: object) -> list[float]:
    rng = stream(*name)
    return [rng.random() for _ in range(5)]


def test_a_stream_is_a_function_of_seed_entity_and_purpose() -> None:
    assert draws(1, "replica-1", "faults") == draws(1, "replica-1", "faults")


def test_each_part_of_the_name_makes_another_stream() -> None:
    names = [(1, "a", "x"), (2, "a", "x"), (1, "b", "x"), (1, "a", "y")]
    drawn = {tuple(draws(*name)) for name in names}
    assert len(drawn) == len(names)


def test_the_parts_of_a_name_do_not_run_together() -> None:
    assert draws(1, "ab", "c") != draws(1, "a", "bc")
    assert draws(11, "a", "b") != draws(1, "1a", "b")


def test_the_draws_are_the_same_in_every_release() -> None:
    rng = stream(0, "flow", "retry")
    assert [rng.randrange(1_000_000) for _ in range(3)] == [922_655, 378_156, 194_959]


def test_a_new_draw_in_one_stream_shifts_nothing_in_another() -> None:
    first, second = stream(3, "a", "x"), stream(3, "a", "y")
    first.random()
    assert [second.random() for _ in range(5)] == draws(3, "a", "y")


def test_a_factory_gives_the_streams_of_its_entity() -> None:
    named = streams_of(5, "fleet")
    rng = named("health/r1")
    assert [rng.random() for _ in range(5)] == draws(5, "fleet", "health/r1")
    assert named("x") is not named("x")
