from holdfast.ports import StoredOrder
from holdfast.storage import orders as module
from holdfast.storage.sqlite import SqliteStore


def order(at, *, let_in=True):
    status = 202 if let_in else 401
    who = "oncall" if let_in else "nobody"
    return StoredOrder(float(at), who, "POST /reload", "10.0.0.1", status, "", not let_in)


def test_the_trail_outlives_the_process(tmp_path):
    store = SqliteStore(tmp_path / "store.db")
    store.add_order(order(1))
    assert store.close()
    again = SqliteStore(tmp_path / "store.db")
    assert again.orders() == [order(1)]
    assert again.close()


def test_a_stranger_who_knocks_all_day_pushes_no_order_out(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ORDERS_MAX", 3)
    monkeypatch.setattr(module, "NOT_LET_IN_MAX", 2)
    store = SqliteStore(tmp_path / "store.db")
    for at in range(5):
        store.add_order(order(at))
    for at in range(100, 150):
        store.add_order(order(at, let_in=False))
        assert store.flush()
    assert [row.at for row in store.orders()] == [2.0, 3.0, 4.0, 148.0, 149.0]
    assert store.close()


def test_a_stuck_disk_holds_a_bounded_number_of_rows(monkeypatch):
    monkeypatch.setattr(module, "WAITING_MAX", 2)
    rows = module.OrderRows()
    assert [rows.add(order(at)) for at in range(3)] == [True, True, False]
    assert rows.dropped == 1
    taken = rows.take()
    rows.written(taken)
    assert rows.take() == ()


def test_a_text_that_no_file_can_hold_stops_no_writes(tmp_path):
    store = SqliteStore(tmp_path / "store.db")
    store.add_order(StoredOrder(1.0, "a", "POST /\udcff", "x", 401, "y" * 5_000, True))
    assert store.flush()
    (row,) = store.orders()
    assert (row.what, len(row.result)) == ("POST /?", 2_000)
    assert store.close()
