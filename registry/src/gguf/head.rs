//! Layers of a file that belong to a `nextn` head.

use super::FileMetadata;
use crate::scalar::Scalar;

/// The key that counts the head's layers among those of the file.
const COUNT: &str = "nextn_predict_layers";

/// Counts the layers of a file that are those of a head.
pub(crate) fn head_layers(header: &FileMetadata) -> i64 {
    match header.keys.peek(COUNT) {
        Some(Scalar::Int(count)) => *count,
        _ => 0,
    }
}

/// Returns the metadata of a file without the layers of a head.
pub(super) fn without_head(header: &FileMetadata) -> FileMetadata {
    let mut trunk = header.clone();
    if let (count @ 1.., Some(Scalar::Int(all))) =
        (head_layers(header), header.keys.peek("block_count"))
    {
        trunk.keys.replace("block_count", Scalar::Int(all.saturating_sub(count)));
    }
    trunk
}
