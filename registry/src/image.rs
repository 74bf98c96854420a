//! The rows of an encoder that an image becomes.

/// Order of the rows of an image, and what stands before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageLayout {
    /// Pixels of a side of a patch; none if a processor gives patches.
    pub side: Option<usize>,
    /// Patches of a side of a block. Blocks come one after another.
    pub block: usize,
    /// Blocks of a side of a window. Windows come one after another.
    pub window: Option<usize>,
    /// Rows before those of the patches.
    pub skip: usize,
    /// True if a processor gives patches block by block, else line by line.
    pub in_blocks: bool,
}

impl Default for ImageLayout {
    fn default() -> Self {
        Self { side: None, block: 1, window: None, skip: 0, in_blocks: false }
    }
}

/// Patches of an image in the order of an encoder's rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedPatches {
    /// The line and the column of each patch.
    pub places: Vec<(usize, usize)>,
    /// Ranges of patches that are in one window.
    pub windows: Vec<(usize, usize)>,
    /// For each block in lines of blocks, its number in the order of rows.
    pub blocks: Vec<usize>,
}

impl ImageLayout {
    /// Returns the number of patches that become one row.
    pub fn group(&self) -> usize {
        self.block * self.block
    }

    /// Places the patches of an image; none if its lines and columns do not divide into blocks.
    pub fn place(&self, lines: usize, columns: usize) -> Option<PlacedPatches> {
        let block = self.block;
        if block == 0 || !lines.is_multiple_of(block) || !columns.is_multiple_of(block) {
            return None;
        }
        let down = lines / block;
        let across = columns / block;
        let window = self.window.unwrap_or(down.max(across)).max(1);
        let mut placed = PlacedPatches {
            places: Vec::with_capacity(lines * columns),
            windows: Vec::new(),
            blocks: vec![0; down * across],
        };
        for top in (0..down).step_by(window) {
            for left in (0..across).step_by(window) {
                let start = placed.places.len();
                for y in top..(top + window).min(down) {
                    for x in left..(left + window).min(across) {
                        placed.blocks[y * across + x] = placed.places.len() / self.group();
                        let inside = (0..self.group()).map(|n| (n / block, n % block));
                        let patches =
                            inside.map(|(line, column)| (y * block + line, x * block + column));
                        placed.places.extend(patches);
                    }
                }
                placed.windows.push((start, placed.places.len()));
            }
        }
        Some(placed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_one_after_another() {
        let layout = ImageLayout { block: 2, ..ImageLayout::default() };
        let placed = layout.place(2, 4).unwrap();
        let places = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)];
        assert_eq!(placed.places, places);
        assert_eq!((placed.windows, placed.blocks), (vec![(0, 8)], vec![0, 1]));
        assert_eq!(layout.place(2, 3), None);
    }

    #[test]
    fn windows_hold_blocks_and_may_be_cut_off() {
        let layout = ImageLayout { block: 1, window: Some(2), ..ImageLayout::default() };
        let placed = layout.place(2, 3).unwrap();
        assert_eq!(placed.places, [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2)]);
        assert_eq!(placed.windows, [(0, 4), (4, 6)]);
        assert_eq!(placed.blocks, [0, 1, 4, 2, 3, 5]);
    }
}
