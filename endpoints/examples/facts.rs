//! Recognises an inference server and scores a short prompt.
//!
//! `cargo run -p onboard-endpoints --example facts -- http://127.0.0.1:8000`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;

use onboard_endpoints::{EndpointOptions, PrefixCache, PromptRequest, connect};

fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("give the address of a server")?;
    let endpoint = connect(&url, &EndpointOptions { vocab: 32_000, ..EndpointOptions::default() })?;
    let facts = endpoint.facts();
    println!("{} {:?} serves {}", facts.driver, facts.version, facts.model);
    let ask = PromptRequest { tokens: &[1, 5, 9], cache: PrefixCache::Default };
    let scored = endpoint.score(&ask, &[0, 1])?;
    println!("{} rows", scored.rows.len());
    Ok(())
}
