//! Sessions of the tiny engine: slots, steps, taps and states, with their faults.

use engine::{
    Chunk, Error, Logits, OutputRows, Probe, Session, SessionFeatures, SlotId, StateValue,
};
use registry::dtype::Dtype;
use registry::graph::StateId;
use registry::model::Model;

use super::{D, FakeSession, Fault, H, HEADS, Slot, VOCAB, WIDTH, WINDOW, round, weight};

impl FakeSession {
    fn slot(&self, id: SlotId) -> Result<&Slot, Error> {
        self.slots.get(id.0).and_then(Option::as_ref).ok_or(Error::UnknownSlot(id.0))
    }
}

/// Probe without taps: a call fails the test.
struct Closed;

impl Probe for Closed {
    fn wants(&self, _tap: &str) -> bool {
        false
    }

    fn tap(&mut self, tap: &str, _shape: &[usize], _data: &mut [f32]) {
        panic!("{tap} was shown");
    }
}

fn show(probe: &mut dyn Probe, tap: &str, x: &mut [[f32; H]]) {
    if probe.wants(tap) {
        let mut flat = x.concat();
        probe.tap(tap, &[x.len(), H], &mut flat);
        for (row, new) in x.iter_mut().zip(flat.chunks(H)) {
            row.copy_from_slice(new);
        }
    }
}

impl Session for FakeSession {
    fn model(&self) -> &Model {
        &self.model
    }

    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn features(&self) -> SessionFeatures {
        let sees = !self.fake.blind;
        SessionFeatures { taps: sees, states: sees, seeds: sees, feeds: sees, steps: true }
    }

    fn open_slot(&mut self) -> SlotId {
        let fresh = match self.released.pop() {
            Some(old) if self.fake.fault == Fault::StaleSlot => Slot {
                columns: old.columns[old.columns.len() + 1 - WIDTH..].to_vec(),
                ..Slot::empty()
            },
            _ => Slot::empty(),
        };
        self.slots.push(Some(fresh));
        SlotId(self.slots.len() - 1)
    }

    fn release(&mut self, slot: SlotId) -> Result<(), Error> {
        self.slot(slot)?;
        self.released.extend(self.slots[slot.0].take());
        Ok(())
    }

    fn position(&self, slot: SlotId) -> Result<usize, Error> {
        Ok(self.slot(slot)?.tokens.len())
    }

    fn step(&mut self, chunks: &[Chunk<'_>], probe: &mut dyn Probe) -> Result<Vec<Logits>, Error> {
        let probe: &mut dyn Probe = if self.fake.blind { &mut Closed } else { probe };
        let tokens: Vec<u32> = chunks.iter().flat_map(|c| c.tokens.iter().copied()).collect();
        let mut x: Vec<[f32; H]> = tokens
            .iter()
            .map(|t| std::array::from_fn(|i| 2.0 * weight(1, *t as usize * H + i)))
            .collect();
        show(probe, "embed", &mut x);
        let mut slots = Vec::new();
        for chunk in chunks {
            slots.push(self.slot(chunk.slot)?.clone());
        }
        let sorted = chunks.windows(2).all(|w| w[0].slot < w[1].slot);
        if self.fake.fault == Fault::BatchOrder && !sorted {
            slots.rotate_left(1);
        }
        let mut y = self.norm(10, &x);
        show(probe, "layers.0.norm", &mut y);
        let mut y = self.linear(2, &y);
        show(probe, "layers.0.in_proj", &mut y);
        let mut y: Vec<[f32; H]> = rows_of_chunks(chunks, &y)
            .iter()
            .zip(&mut slots)
            .flat_map(|(rows, slot)| self.conv(slot, rows))
            .collect();
        y = self.linear(3, &y);
        show(probe, "layers.0.out_proj", &mut y);
        x = self.add(&x, &y);
        show(probe, "layers.0", &mut x);
        let mut y = self.norm(11, &x);
        show(probe, "layers.1.norm", &mut y);
        let q = self.linear(4, &y);
        let mut k = self.linear(5, &y);
        show(probe, "layers.1.k_proj", &mut k);
        let v = self.linear(6, &y);
        let q = rows_of_chunks(chunks, &q);
        let k = rows_of_chunks(chunks, &k);
        let v = rows_of_chunks(chunks, &v);
        let mut y: Vec<[f32; H]> = Vec::new();
        for (n, slot) in slots.iter_mut().enumerate() {
            y.extend(self.attend(slot, &q[n], &k[n], &v[n]));
        }
        let mut y = self.linear(8, &y);
        show(probe, "layers.1.o_proj", &mut y);
        x = self.add(&x, &y);
        show(probe, "layers.1", &mut x);
        let mut results = Vec::new();
        let mut at = 0;
        for (chunk, mut slot) in chunks.iter().zip(slots) {
            let end = at + chunk.tokens.len();
            let rows = match chunk.rows {
                OutputRows::None => end..end,
                OutputRows::Last => end - 1..end,
                OutputRows::All => at..end,
            };
            let mut data = Vec::new();
            for row in &x[rows.clone()] {
                for o in 0..VOCAB {
                    data.push(self.round(self.sum((0..H).map(|i| row[i] * weight(9, o * H + i)))));
                }
            }
            if probe.wants("head") && !rows.is_empty() {
                probe.tap("head", &[rows.len(), VOCAB], &mut data);
            }
            if self.fake.fault == Fault::NotANumber && !slot.tokens.is_empty() {
                data[3] = f32::NAN;
            }
            results.push(Logits { rows: rows.len(), vocab: VOCAB, data });
            slot.tokens.extend_from_slice(chunk.tokens);
            self.slots[chunk.slot.0] = Some(slot);
            at = end;
        }
        Ok(results)
    }

    fn fork(&mut self, slot: SlotId) -> Result<SlotId, Error> {
        let mut copy = self.slot(slot)?.clone();
        if self.fake.fault == Fault::ForkLeaks {
            copy.columns.last_mut().unwrap()[0] += 0.5;
        }
        self.slots.push(Some(copy));
        Ok(SlotId(self.slots.len() - 1))
    }

    fn truncate(&mut self, slot: SlotId, length: usize) -> Result<(), Error> {
        let half = self.fake.fault == Fault::HalfTruncate;
        self.slot(slot)?;
        let s = self.slots[slot.0].as_mut().unwrap();
        s.tokens.truncate(length);
        s.keys.truncate(length);
        s.values.truncate(length);
        if !half {
            s.columns.truncate(length + WIDTH - 1);
        }
        Ok(())
    }

    fn save(&self, slot: SlotId) -> Result<Vec<u8>, Error> {
        Ok(self.slot(slot)?.tokens.iter().flat_map(|t| t.to_le_bytes()).collect())
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<SlotId, Error> {
        let tokens: Vec<u32> =
            bytes.as_chunks::<4>().0.iter().map(|w| u32::from_le_bytes(*w)).collect();
        let slot = self.open_slot();
        self.step(
            &[Chunk { slot, tokens: &tokens, rows: OutputRows::None }],
            &mut engine::NoProbe,
        )?;
        Ok(slot)
    }

    fn states(&self, slot: SlotId) -> Result<Vec<StateValue>, Error> {
        assert!(!self.fake.blind, "asked for states that are not shown");
        let slot = self.slot(slot)?;
        let last = &slot.columns[slot.columns.len() + 1 - WIDTH..];
        let conv = (0..H).flat_map(|c| last.iter().map(move |column| column[c])).collect();
        let kept = slot.keys.len().min(WINDOW - 1);
        Ok(vec![
            state_value(0, 0, "conv", vec![H, WIDTH - 1], conv),
            state_value(
                1,
                1,
                "k",
                vec![kept, HEADS, D],
                slot.keys[slot.keys.len() - kept..].concat(),
            ),
            state_value(
                1,
                1,
                "v",
                vec![kept, HEADS, D],
                slot.values[slot.values.len() - kept..].concat(),
            ),
        ])
    }

    fn seed(&mut self, position: usize, states: &[StateValue]) -> Result<SlotId, Error> {
        let last = &states[0].data;
        let columns =
            std::iter::repeat_n([0.0; H], position).chain((0..WIDTH - 1).map(|n: usize| {
                std::array::from_fn(|c| {
                    let x = last[c * (WIDTH - 1) + n];
                    if self.fake.fault == Fault::NarrowState { round(Dtype::Bf16, x) } else { x }
                })
            }));
        self.slots.push(Some(Slot {
            tokens: vec![0; position],
            columns: columns.collect(),
            keys: rows_after_zeros(position, states.get(1).map_or(&[], |state| &state.data)),
            values: rows_after_zeros(position, states.get(2).map_or(&[], |state| &state.data)),
        }));
        Ok(SlotId(self.slots.len() - 1))
    }
}

fn rows_after_zeros(position: usize, data: &[f32]) -> Vec<[f32; H]> {
    let held = data.chunks(H).map(|row| row.try_into().unwrap());
    let before = position - data.len() / H;
    std::iter::repeat_n([0.0; H], before).chain(held).collect()
}

fn rows_of_chunks(chunks: &[Chunk<'_>], x: &[[f32; H]]) -> Vec<Vec<[f32; H]>> {
    let mut at = 0;
    chunks
        .iter()
        .map(|c| {
            at += c.tokens.len();
            x[at - c.tokens.len()..at].to_vec()
        })
        .collect()
}

fn state_value(
    state: usize,
    layer: usize,
    part: &str,
    shape: Vec<usize>,
    data: Vec<f32>,
) -> StateValue {
    StateValue { state: StateId(state), layer, part: part.into(), shape, data }
}
