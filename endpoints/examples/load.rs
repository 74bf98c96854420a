//! Measures a server under load with the prompts of a file.
//!
//! `cargo run -p onboard-endpoints --example load -- http://127.0.0.1:8000 prompts.jsonl 4`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;

use onboard_endpoints::EndpointOptions;
use onboard_endpoints::load::{
    LoadClient, LoadOptions, LoadPlan, LoadSummary, SummaryOptions, parse_prompts,
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let (Some(url), Some(file)) = (words.next(), words.next()) else {
        return Err("give the address of a server and a file of prompts".into());
    };
    let concurrency = words.next().map(|word| word.parse()).transpose()?;
    let text = registry::file::read_text(file.as_ref(), registry::file::TEXT)?;
    let prompts = parse_prompts(&text, 1000)?;
    let options = LoadOptions { ignore_eos: true, ..LoadOptions::default() };
    let client = LoadClient::connect(&url, &EndpointOptions::default(), options)?;
    let plan = LoadPlan { prompts, output: 16, concurrency, ..LoadPlan::default() };
    let run = client.run(plan, &mut |_| true);
    let summary = LoadSummary::of(&run, &SummaryOptions::default());
    println!(
        "{{\"completed\": {}, \"failures\": \"{:?}\", \"total_input_tokens\": {}, \"total_output_tokens\": {}, \
         \"mean_ttft_ms\": {}, \"median_ttft_ms\": {}, \"mean_tpot_ms\": {}, \"median_tpot_ms\": {}, \
         \"mean_itl_ms\": {}, \"mean_e2el_ms\": {}, \"request_throughput\": {}, \"output_throughput\": {}}}",
        summary.completed,
        summary.failures,
        summary.input_tokens,
        summary.output_tokens,
        summary.ttft.mean,
        summary.ttft.median,
        summary.tpot.mean,
        summary.tpot.median,
        summary.itl.mean,
        summary.e2el.mean,
        summary.rate(summary.completed as f64),
        summary.rate(summary.output_tokens as f64),
    );
    Ok(())
}
