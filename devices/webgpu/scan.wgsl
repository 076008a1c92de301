// Scores of lists. A workgroup scores 64 rows of one list, for one query (`_one`) or for eight (`_eight`).
//
// The rows that count are marked in an item's masks. For each row the kernels write an upper bound of its exact score,
// and for each group of rows the largest lower bound; the groups' maxima give the floor (select.wgsl).

override DIM: u32;        // components of a vector
override SIZE: u32;       // bytes of a code
override WIDE: bool;      // whether codes begin at multiples of 16 bytes

const ROWS = 64u;
const SLOTS = 8u;         // queries that are scored together
const NONE = -3.4e38;

struct Item {
    at: u32,              // byte of the first code
    count: u32,
    low: u32,             // rows 0 to 31 that count, a bit each
    high: u32,            // rows 32 to 63
    queries: u32,         // the query (`_one`), or a bit for each (`_eight`)
}

struct Range {
    item: u32,            // first item
    slot: u32,            // first slot: 64 scores of one query
    together: u32,        // slots of an item
    groups: u32,          // groups of the rows of an item
    capacity: u32,        // rows that may be found
    k: u32,               // rows that a query keeps
    size: u32,            // bytes of a code
    words: u32,           // words with the bytes of a code
}

struct Head {
    base: f32,            // is added to each score
    margin: f32,          // bound of a score's error; for flat, per unit of a vector's length
    floor: f32,           // of earlier rows
    unused: f32,
}

@group(0) @binding(0) var<storage, read> codes: array<vec4u>;
@group(0) @binding(1) var<storage, read> items: array<Item>;
@group(0) @binding(2) var<uniform> range: Range;
@group(0) @binding(3) var<storage, read> heads: array<Head>;
// The queries, by query and component, or by component and query. 64 KB is what every GPU allows.
@group(0) @binding(4) var<uniform> one: array<vec4f, 4096>;
@group(0) @binding(5) var<uniform> eight: array<vec4f, 4096>;
// The tables of pq, by query, byte and value, or by byte, value and query.
@group(0) @binding(4) var<storage, read> table: array<f32>;
@group(0) @binding(5) var<storage, read> tables: array<vec4f>;
@group(0) @binding(6) var<storage, read_write> scores: array<f32>;
@group(0) @binding(7) var<storage, read_write> maxima: array<f32>;

var<workgroup> lower: array<f32, 512>;    // by query and row

fn counts(item: Item, row: u32) -> bool {
    let mask = select(item.high, item.low, row < 32u);
    return row < item.count && ((mask >> (row & 31u)) & 1u) == 1u;
}

fn word(at: u32) -> u32 {
    let i = at >> 2u;
    let first = codes[i >> 2u][i & 3u];
    let shift = 8u * (at & 3u);
    if shift == 0u {
        return first;
    }
    let j = i + 1u;
    return (first >> shift) | (codes[j >> 2u][j & 3u] << (32u - shift));
}

// 16 bytes of a code.
fn quad(at: u32, n: u32) -> vec4u {
    let own = at + 16u * n;
    if WIDE {
        return codes[own >> 4u];
    }
    return vec4u(word(own), word(own + 4u), word(own + 8u), word(own + 12u));
}

fn bytes(value: u32) -> vec4f {
    return vec4f(unpack4xU8(value));
}

// Components of a flat vector; those behind its end are of another one.
fn floats(at: u32, n: u32) -> vec4f {
    let values = bitcast<vec4f>(quad(at, n));
    return select(vec4f(), values, 4u * n + vec4u(0u, 1u, 2u, 3u) < vec4u(DIM));
}

fn put(slot: u32, query: u32, row: u32, live: bool, score: f32, margin: f32) {
    scores[slot * ROWS + row] = select(NONE, score + margin, live);
    lower[query * ROWS + row] = select(NONE, score - margin, live);
}

// The maxima of the groups of some slots.
fn put_maxima(slot: u32, count: u32, row: u32) {
    workgroupBarrier();
    let width = ROWS / range.groups;
    for (var i = row; i < count * range.groups; i += ROWS) {
        var best = NONE;
        for (var k = 0u; k < width; k++) {
            best = max(best, lower[i * width + k]);
        }
        maxima[(slot + i / range.groups) * ROWS + i % range.groups] = best;
    }
}

fn put_one(group: u32, row: u32, item: Item, score: f32, length: f32) {
    let head = heads[item.queries];
    let slot = range.slot + group;
    put(slot, 0u, row, counts(item, row), head.base + score, head.margin * length);
    put_maxima(slot, 1u, row);
}

fn put_eight(group: u32, row: u32, item: Item, first: vec4f, second: vec4f, length: f32) {
    var values = array<f32, SLOTS>(first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w);
    let slot = range.slot + group * SLOTS;
    for (var query = 0u; query < SLOTS; query++) {
        let live = counts(item, row) && ((item.queries >> query) & 1u) == 1u;
        let head = heads[query];
        put(slot + query, query, row, live, head.base + values[query], head.margin * length);
    }
    put_maxima(slot, SLOTS, row);
}

fn start(item: Item, row: u32) -> u32 {
    return item.at + min(row, item.count - 1u) * SIZE;
}

// The products of four bytes with the components of eight queries from `q` on.
fn add_bytes(value: u32, q: u32, first: ptr<function, vec4f>, second: ptr<function, vec4f>) {
    let v = bytes(value);
    *first += v.x * eight[q] + v.y * eight[q + 2u] + v.z * eight[q + 4u] + v.w * eight[q + 6u];
    *second += v.x * eight[q + 1u] + v.y * eight[q + 3u] + v.z * eight[q + 5u] + v.w * eight[q + 7u];
}

@compute @workgroup_size(64)
fn flat_one(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) row: u32) {
    let item = items[range.item + group.x];
    let at = start(item, row);
    let own = item.queries * ((DIM + 3u) / 4u);
    var sum = 0.0;
    var square = 0.0;
    for (var n = 0u; n < (DIM + 3u) / 4u; n++) {
        let v = floats(at, n);
        sum += dot(v, one[own + n]);
        square += dot(v, v);
    }
    put_one(group.x, row, item, sum, sqrt(square));
}

@compute @workgroup_size(64)
fn flat_eight(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) row: u32) {
    let item = items[range.item + group.x];
    let at = start(item, row);
    var first = vec4f();
    var second = vec4f();
    var square = 0.0;
    for (var n = 0u; n < (DIM + 3u) / 4u; n++) {
        let v = floats(at, n);
        let q = 8u * n;
        first += v.x * eight[q] + v.y * eight[q + 2u] + v.z * eight[q + 4u] + v.w * eight[q + 6u];
        second += v.x * eight[q + 1u] + v.y * eight[q + 3u] + v.z * eight[q + 5u] + v.w * eight[q + 7u];
        square += dot(v, v);
    }
    put_eight(group.x, row, item, first, second, sqrt(square));
}

@compute @workgroup_size(64)
fn sq8_one(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) row: u32) {
    let item = items[range.item + group.x];
    let at = start(item, row);
    let own = item.queries * ((DIM + 15u) / 16u * 4u);
    var sum = 0.0;
    for (var n = 0u; n < (DIM + 15u) / 16u; n++) {
        let words = quad(at, n);
        let q = own + 4u * n;
        sum += dot(bytes(words.x), one[q]) + dot(bytes(words.y), one[q + 1u]);
        sum += dot(bytes(words.z), one[q + 2u]) + dot(bytes(words.w), one[q + 3u]);
    }
    put_one(group.x, row, item, sum, 1.0);
}

@compute @workgroup_size(64)
fn sq8_eight(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) row: u32) {
    let item = items[range.item + group.x];
    let at = start(item, row);
    var first = vec4f();
    var second = vec4f();
    for (var n = 0u; n < (DIM + 15u) / 16u; n++) {
        let words = quad(at, n);
        let q = 32u * n;
        add_bytes(words.x, q, &first, &second);
        add_bytes(words.y, q + 8u, &first, &second);
        add_bytes(words.z, q + 16u, &first, &second);
        add_bytes(words.w, q + 24u, &first, &second);
    }
    put_eight(group.x, row, item, first, second, 1.0);
}

@compute @workgroup_size(64)
fn pq_one(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) row: u32) {
    let item = items[range.item + group.x];
    let at = start(item, row);
    let own = item.queries * 256u * SIZE;
    var sum = 0.0;
    for (var n = 0u; n < (SIZE + 15u) / 16u; n++) {
        let words = quad(at, n);
        for (var i = 0u; i < min(16u, SIZE - 16u * n); i++) {
            let value = (words[i >> 2u] >> (8u * (i & 3u))) & 255u;
            sum += table[own + 256u * (16u * n + i) + value];
        }
    }
    put_one(group.x, row, item, sum, 1.0);
}

@compute @workgroup_size(64)
fn pq_eight(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) row: u32) {
    let item = items[range.item + group.x];
    let at = start(item, row);
    var first = vec4f();
    var second = vec4f();
    for (var n = 0u; n < (SIZE + 15u) / 16u; n++) {
        let words = quad(at, n);
        for (var i = 0u; i < min(16u, SIZE - 16u * n); i++) {
            let value = (words[i >> 2u] >> (8u * (i & 3u))) & 255u;
            let q = 2u * (256u * (16u * n + i) + value);
            first += tables[q];
            second += tables[q + 1u];
        }
    }
    put_eight(group.x, row, item, first, second, 1.0);
}
