//! Points of a codebook, and the nearest points to all other level combinations.

use std::sync::LazyLock;

use super::grids;

/// Point: its index, shifted left by 16 bits, and its packed levels.
pub(super) type Pick = u32;

/// Points of one codebook, with `N` values each.
pub(super) struct Lattice<const N: usize> {
    /// Cells by packed levels.
    cells: Box<[LatticeCell]>,
    /// Neighbours of all places, as packed levels.
    near: Vec<u16>,
}

/// Range of a place's neighbours in `near`; if `count` is 0, `start` is the point at the place.
#[derive(Clone, Copy)]
struct LatticeCell {
    start: u32,
    count: u32,
}

/// Contents of a place.
pub(super) enum LatticePlace<'a> {
    Point(Pick),
    /// Packed levels of the neighbours; never empty, padded with the last one to a multiple of
    /// [`NEIGHBOURS`].
    Near(&'a [u16]),
}

/// Number of neighbours that are compared at once, at most.
const NEIGHBOURS: usize = 16;

/// Returns the number of bits of one level in packed levels.
pub(super) const fn bits(numbers: usize) -> usize {
    if numbers == 8 { 2 } else { 3 }
}

/// Returns the number of levels that a value can have.
pub(super) const fn levels(numbers: usize) -> usize {
    if numbers == 8 { 3 } else { 8 }
}

/// Returns the level of value `i` of a point.
#[inline]
pub(super) fn level<const N: usize>(pick: Pick, i: usize) -> usize {
    (pick >> (bits(N) * i)) as usize & ((1 << bits(N)) - 1)
}

// The number of distances searched is `nwant` of iq2xs_init_impl and iq3xs_init_impl.
pub(super) static IQ2_XXS: LazyLock<Lattice<8>> = LazyLock::new(|| Lattice::new(grids::IQ2_XXS, 2));
pub(super) static IQ2_XS: LazyLock<Lattice<8>> = LazyLock::new(|| Lattice::new(grids::IQ2_XS, 2));
pub(super) static IQ2_S: LazyLock<Lattice<8>> = LazyLock::new(|| Lattice::new(grids::IQ2_S, 1));
pub(super) static IQ1: LazyLock<Lattice<8>> = LazyLock::new(|| Lattice::new(grids::IQ1, 3));
pub(super) static IQ3_XXS: LazyLock<Lattice<4>> = LazyLock::new(|| Lattice::new(grids::IQ3_XXS, 2));
pub(super) static IQ3_S: LazyLock<Lattice<4>> = LazyLock::new(|| Lattice::new(grids::IQ3_S, 3));

impl<const N: usize> Lattice<N> {
    /// Finds for every place the points at the `rings` smallest distances, ordered by distance, then index.
    fn new(points: &[u16], rings: usize) -> Self {
        let origin = LatticeCell { start: pick_of(points, 0), count: 0 };
        let mut cells = vec![origin; 1 << (bits(N) * N)].into_boxed_slice();
        let mut near = Vec::new();
        for (index, &point) in points.iter().enumerate() {
            cells[point as usize].start = pick_of(points, index);
        }
        let mut by_distance: Vec<Vec<u16>> = vec![Vec::new(); N * levels(N).pow(2)];
        for code in 0..cells.len() as u32 {
            let place: [usize; N] = std::array::from_fn(|i| level::<N>(code, i));
            let taken = cells[code as usize].start as u16 == code as u16;
            if taken || place.iter().any(|&level| level >= levels(N)) {
                continue;
            }
            for &point in points {
                by_distance[(0..N)
                    .map(|i: usize| place[i].abs_diff(level::<N>(point as u32, i)).pow(2))
                    .sum::<usize>()]
                .push(point);
            }
            let start = near.len();
            for ring in by_distance.iter().filter(|ring| !ring.is_empty()).take(rings) {
                near.extend_from_slice(ring);
            }
            let last = near[near.len() - 1];
            near.resize(start + (near.len() - start).next_multiple_of(NEIGHBOURS), last);
            let count = (near.len() - start) as u32;
            cells[code as usize] = LatticeCell { start: start as u32, count };
            by_distance.iter_mut().for_each(Vec::clear);
        }
        Self { cells, near }
    }

    /// Returns the contents of the place with these packed levels.
    #[inline]
    pub(super) fn at(&self, code: u32) -> LatticePlace<'_> {
        let LatticeCell { start, count } = self.cells[code as usize & (self.cells.len() - 1)];
        match count {
            0 => LatticePlace::Point(start),
            _ => LatticePlace::Near(&self.near[start as usize..][..count as usize]),
        }
    }

    /// Returns the point with these packed levels.
    #[inline]
    pub(super) fn pick(&self, point: u16) -> Pick {
        self.cells[usize::from(point) & (self.cells.len() - 1)].start
    }
}

/// Returns the point with an index.
fn pick_of(points: &[u16], index: usize) -> Pick {
    (index as u32) << 16 | points[index] as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<const N: usize>(lattice: &Lattice<N>, points: &[u16], rings: usize) {
        for code in (0..lattice.cells.len() as u32).step_by(7) {
            if (0..N).any(|i| level::<N>(code, i) >= levels(N)) {
                assert!(
                    matches!(lattice.at(code), LatticePlace::Point(pick) if pick == points[0] as u32)
                );
                continue;
            }
            let LatticePlace::Near(list) = lattice.at(code) else {
                assert!(points.contains(&(code as u16)));
                continue;
            };
            let mut all: Vec<_> = points.iter().map(|&p| distance::<N>(code, p as u32)).collect();
            all.sort_unstable();
            let mut distinct = all.clone();
            distinct.dedup();
            let limit = distinct[rings - 1];
            let want = all.iter().take_while(|&&d| d <= limit).count();
            assert_eq!(list.len(), want.next_multiple_of(NEIGHBOURS));
            let keys = list[..want]
                .iter()
                .map(|&point| (distance::<N>(code, point.into()), lattice.pick(point) >> 16));
            assert!(keys.collect::<Vec<_>>().is_sorted_by(|a, b| a < b));
            assert!(list[want..].iter().all(|&point| point == list[want - 1]));
        }
    }

    fn distance<const N: usize>(a: u32, b: u32) -> usize {
        (0..N).map(|i| level::<N>(a, i).abs_diff(level::<N>(b, i)).pow(2)).sum()
    }

    #[test]
    fn neighbours_are_the_nearest_points_in_order() {
        check(&IQ2_XXS, grids::IQ2_XXS, 2);
        check(&IQ2_S, grids::IQ2_S, 1);
        check(&IQ1, grids::IQ1, 3);
        check(&IQ3_XXS, grids::IQ3_XXS, 2);
        check(&IQ3_S, grids::IQ3_S, 3);
    }
}
