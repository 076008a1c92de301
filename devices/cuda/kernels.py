"""Kernels of a search in Triton: upper bounds of the scores of all rows, and the codes of the best ones."""

# Triton compiles these functions: types of their arguments are for it, and loops are over blocks.
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["length"])
def scan(
    items, values, heads, upper, length, width,
    KIND: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Bounds of the rows of one item [5, n]: the address of its first code, the query, the place of its bounds, rows,
    and a bit for each row that counts. `heads` [q, 2] are added to a score, and bound its error."""
    item, count = tl.program_id(0), tl.num_programs(0)
    address = tl.load(items + item)
    query = tl.load(items + count + item)
    place = tl.load(items + 2 * count + item)
    number = tl.load(items + 3 * count + item)
    mask = tl.load(items + 4 * count + item)
    rows, columns = tl.arange(0, ROWS), tl.arange(0, STEP)
    live = (rows < number) & (((mask >> rows.to(tl.int64)) & 1) == 1)
    codes = address.to(tl.pointer_type(tl.uint8))
    if KIND == "flat":
        codes = address.to(tl.pointer_type(tl.float32))
    per_row = DIM if KIND == "flat" else SIZE
    own = values + query * width
    total = tl.zeros((ROWS,), tl.float32)
    squares = tl.zeros((ROWS,), tl.float32)
    for low in range(0, per_row, STEP):
        inside = low + columns < per_row
        code = tl.load(
            codes + rows[:, None] * per_row + (low + columns)[None, :], mask=live[:, None] & inside[None, :], other=0
        )
        if KIND == "pq":
            entry = (low + columns)[None, :] * 256 + code.to(tl.int32)
            total += tl.sum(tl.load(own + entry, mask=live[:, None] & inside[None, :], other=0.0), 1)
        else:
            number_of = code.to(tl.float32)
            total += tl.sum(number_of * tl.load(own + low + columns, mask=inside, other=0.0)[None, :], 1)
            squares += tl.sum(number_of * number_of, 1)
    margin = tl.load(heads + 2 * query + 1)
    bound = margin * tl.sqrt(squares) if KIND == "flat" else tl.zeros((ROWS,), tl.float32) + margin
    score = tl.load(heads + 2 * query) + total + bound
    tl.store(upper + query * length + place + rows, tl.where(live, score, float("-inf")))


@triton.jit(do_not_specialize=["count", "keep"])
def gather(
    items, firsts, places, bounds, found, count, keep,
    SIZE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """One of the best rows of a query: its bound, its place among the query's rows, and the bytes of its code.
    `firsts` is the first item of each query."""
    number = tl.program_id(0)
    place = tl.load(places + number)
    bound = tl.load(bounds + number)
    into = found + number.to(tl.int64) * WORDS
    tl.store(into, bound.to(tl.int32, bitcast=True))
    tl.store(into + 1, place.to(tl.int32))
    if bound > float("-inf"):
        item = tl.load(firsts + number // keep) + place // ROWS
        columns = tl.arange(0, BLOCK)
        codes = tl.load(items + item).to(tl.pointer_type(tl.uint8)) + (place % ROWS) * SIZE
        bytes_of = (into + 2).to(tl.pointer_type(tl.uint8))
        tl.store(bytes_of + columns, tl.load(codes + columns, mask=columns < SIZE), mask=columns < SIZE)
