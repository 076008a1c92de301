// The floor of each query, and the rows above it.

const ROWS = 64u;
const SLOTS = 8u;
const NONE = -3.4e38;

struct Item { at: u32, count: u32, low: u32, high: u32, queries: u32 }  // see scan.wgsl
struct Range { item: u32, slot: u32, together: u32, groups: u32, capacity: u32, k: u32, size: u32, words: u32 }
struct Head { base: f32, margin: f32, floor: f32, unused: f32 }

@group(0) @binding(0) var<storage, read> slots: array<u32>;       // 9 bounds, then each query's slots
@group(0) @binding(1) var<storage, read> items: array<Item>;
@group(0) @binding(2) var<uniform> range: Range;
@group(0) @binding(3) var<storage, read> heads: array<Head>;
@group(0) @binding(4) var<storage, read> maxima: array<f32>;
@group(0) @binding(5) var<storage, read_write> floors: array<f32>;
@group(0) @binding(6) var<storage, read> scores: array<f32>;
@group(0) @binding(7) var<storage, read> codes: array<u32>;
@group(0) @binding(8) var<storage, read_write> number: atomic<u32>;
@group(0) @binding(9) var<storage, read_write> found: array<u32>; // each: item and row, query, the words of the code

var<workgroup> histogram: array<atomic<u32>, 256>;
var<workgroup> prefix: u32;
var<workgroup> wanted: u32;

// A number whose order is that of the scores.
fn ordered(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

fn unordered(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key & 0x7fffffffu, (key >> 31u) == 1u));
}

// The k-th largest maximum of a query's groups, by its bytes from the highest on: at least k rows reach it.
@compute @workgroup_size(256)
fn floor_of(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
    let query = group.x;
    let first = slots[query];
    let groups = range.groups;
    let total = (slots[query + 1u] - first) * groups;
    let before = heads[query].floor;
    if total < range.k {
        if thread == 0u {
            floors[query] = before;
        }
        return;
    }
    if thread == 0u {
        prefix = 0u;
        wanted = range.k;
    }
    for (var level = 0u; level < 4u; level++) {
        let shift = 24u - 8u * level;
        atomicStore(&histogram[thread], 0u);
        workgroupBarrier();
        let known = prefix;
        for (var i = thread; i < total; i += 256u) {
            let key = ordered(maxima[slots[SLOTS + 1u + first + i / groups] * ROWS + i % groups]);
            if level == 0u || (key >> (shift + 8u)) == known {
                atomicAdd(&histogram[(key >> shift) & 255u], 1u);
            }
        }
        workgroupBarrier();
        if thread == 0u {
            var bucket = 255u;
            var left = wanted;
            loop {
                let here = atomicLoad(&histogram[bucket]);
                if here >= left || bucket == 0u {
                    break;
                }
                left -= here;
                bucket--;
            }
            wanted = left;
            prefix = (known << 8u) | bucket;
        }
        workgroupBarrier();
    }
    if thread == 0u {
        floors[query] = max(before, unordered(prefix));
    }
}

@compute @workgroup_size(64)
fn survivors(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) row: u32) {
    let own = range.item + group.x / range.together;
    let item = items[own];
    var query = item.queries;
    if range.together > 1u {
        query = group.x % range.together;
        if ((item.queries >> query) & 1u) == 0u {
            return;
        }
    }
    let score = scores[(range.slot + group.x) * ROWS + row];
    if score <= NONE || score < floors[query] {
        return;
    }
    let place = atomicAdd(&number, 1u);
    if place >= range.capacity {
        return;
    }
    let into = place * (2u + range.words);
    found[into] = own * ROWS + row;
    found[into + 1u] = query;
    let start = (item.at + row * range.size) >> 2u;
    for (var i = 0u; i < range.words; i++) {
        found[into + 2u + i] = codes[start + i];
    }
}
