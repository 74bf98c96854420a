//! Sessions with the rows of prompts of dumps.

use engine::RowsSession;
use registry::dtype::Dtype;

use crate::dump::{self, Dump, Prompt};

/// Gives a session the rows of a prompt: those that a head or an encoder is fed, and those in the place of embeddings.
pub(crate) fn begin(
    session: &mut RowsSession,
    dump: &Dump,
    dtype: Dtype,
    prompt: &Prompt,
) -> Result<(), dump::Error> {
    let width = session.width();
    let fed = if width == 0 { Vec::new() } else { dump.hidden(dtype, prompt, width)? };
    session.begin(fed, dump.rows_of(dtype, prompt)?);
    Ok(())
}
