//! Lists the files of a model on a hub.
//!
//! `cargo run -p onboard-hub --example list -- https://huggingface.co owner/name`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;
use std::path::Path;

use onboard_hub::{Client, HubOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let endpoint = words.next().ok_or("give the address of a hub")?;
    let id = words.next().ok_or("give owner/name")?;
    let cache = Path::new("target/hub-example");
    let options = HubOptions::default();
    let client = Client::new(&endpoint, None, cache, "onboard-example", options, |_| {})?;
    let listing = client.list(&id, "main")?;
    println!("{listing:#?}");
    Ok(())
}
