//! Pictures: three bytes for each pixel, rows from the top.

/// Channels of a picture: red, green and blue.
pub const CHANNELS: usize = 3;

/// A picture in RGB with eight bits for each channel.
#[derive(Clone, PartialEq, Eq)]
pub struct Picture {
    height: usize,
    width: usize,
    bytes: Vec<u8>,
}

impl std::fmt::Debug for Picture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Picture({} x {})", self.height, self.width)
    }
}

impl Picture {
    /// Creates a picture of its rows; none if there are no pixels, or not three bytes for each.
    pub fn new(height: usize, width: usize, bytes: Vec<u8>) -> Option<Self> {
        let count = height.checked_mul(width)?.checked_mul(CHANNELS)?;
        (count > 0 && count == bytes.len()).then_some(Self { height, width, bytes })
    }

    /// Creates a picture of one colour. The sizes are the caller's, within the limits.
    pub(crate) fn filled(height: usize, width: usize, colour: [u8; CHANNELS]) -> Self {
        Self { height, width, bytes: colour.repeat(height * width) }
    }

    /// Returns the number of rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Returns the number of pixels in a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the bytes, three for each pixel.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the bytes of a row.
    pub(crate) fn row(&self, y: usize) -> &[u8] {
        &self.bytes[y * self.width * CHANNELS..][..self.width * CHANNELS]
    }

    /// Copies a rectangle that lies within the picture.
    pub(crate) fn part(&self, top: usize, left: usize, height: usize, width: usize) -> Self {
        let mut bytes = Vec::with_capacity(height * width * CHANNELS);
        for y in top..top + height {
            bytes.extend_from_slice(&self.row(y)[left * CHANNELS..][..width * CHANNELS]);
        }
        Self { height, width, bytes }
    }

    /// Writes another picture over a place that lies within this one.
    pub(crate) fn paste(&mut self, other: &Self, top: usize, left: usize) {
        for y in 0..other.height {
            let start = ((top + y) * self.width + left) * CHANNELS;
            self.bytes[start..][..other.width * CHANNELS].copy_from_slice(other.row(y));
        }
    }

    /// Returns the picture as it is seen, by the orientation of EXIF from 1 to 8.
    pub(crate) fn oriented(self, orientation: u8) -> Self {
        if !(2..=8).contains(&orientation) {
            return self;
        }
        let swaps = orientation >= 5;
        let height = if swaps { self.width } else { self.height };
        let width = if swaps { self.height } else { self.width };
        let mut bytes = Vec::with_capacity(self.bytes.len());
        for y in 0..height {
            for x in 0..width {
                let (row, column) = match orientation {
                    2 => (y, width - 1 - x),
                    3 => (height - 1 - y, width - 1 - x),
                    4 => (height - 1 - y, x),
                    5 => (x, y),
                    6 => (width - 1 - x, y),
                    7 => (width - 1 - x, height - 1 - y),
                    _ => (x, height - 1 - y),
                };
                let start = (row * self.width + column) * CHANNELS;
                bytes.extend_from_slice(&self.bytes[start..start + CHANNELS]);
            }
        }
        Self { height, width, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the red channels of a picture of 2 rows and 3 columns, turned.
    fn reds(orientation: u8) -> Vec<u8> {
        let bytes = (0..6).flat_map(|red| [red, 0, 0]).collect();
        let turned = Picture::new(2, 3, bytes).unwrap().oriented(orientation);
        turned.bytes().chunks(CHANNELS).map(|pixel| pixel[0]).collect()
    }

    #[test]
    fn orientations_turn_and_mirror() {
        let cases: [(u8, [u8; 6]); 8] = [
            (1, [0, 1, 2, 3, 4, 5]),
            (2, [2, 1, 0, 5, 4, 3]),
            (3, [5, 4, 3, 2, 1, 0]),
            (4, [3, 4, 5, 0, 1, 2]),
            (5, [0, 3, 1, 4, 2, 5]),
            (6, [3, 0, 4, 1, 5, 2]),
            (7, [5, 2, 4, 1, 3, 0]),
            (8, [2, 5, 1, 4, 0, 3]),
        ];
        for (orientation, expected) in cases {
            assert_eq!(reds(orientation), expected, "{orientation}");
        }
    }
}
