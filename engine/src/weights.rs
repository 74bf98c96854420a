//! The weights of a session: mapped where the file's dtype serves, rounded once where not.

mod integers;
mod tensors;

use std::collections::{BTreeMap, BTreeSet};

use checkpoints::checkpoint::Rounding;
use checkpoints::gguf_weights::{BlockView, RowParts, RowRun};
use checkpoints::load::WeightView as FileView;
use formats::codec::{self, BlockType};
use formats::safetensors::FileDtype;
use formats::shown;
use registry::attention_modules::AttentionModules;
use registry::dtype::Dtype;
use registry::graph::{Graph, Node, ScaleGranularity, Weight, WeightId};
use registry::ops::{INTEGERS, Trait};

use crate::device::{DeviceBuffer, DeviceQueue, blocks, source};
use crate::kernels::matmul::{MatrixParts, MatrixView, Strides};
use crate::kernels::q8::PackedMatrix;
use crate::kernels::round;
use crate::kernels::tiles::TileUnit;
use crate::value::stored_bytes;
use crate::{Error, InputRounding, ProductArithmetic};

pub use tensors::{WeightSource, WeightsInMemory};

/// The form in which one weight is held.
enum WeightForm {
    /// The unchanged bytes of the file; matrices are widened block by block when they are used.
    File(Dtype),
    /// Rows of blocks, which are decoded when they are used.
    Blocks(BlockType, Option<Box<PackedMatrix>>),
    /// Rows of several tensors, each with its layout for products in integers.
    Parts(Vec<Option<Box<PackedMatrix>>>),
    /// A matrix rounded to the run's 16-bit dtype, as bytes.
    Rounded(Dtype, Vec<u8>),
    /// A small weight as f32, rounded to the dtype that the graph gives it.
    F32(Vec<f32>),
    /// A matrix of an expert, made and rounded to this whenever it is used.
    OnDemand(Dtype),
    /// A matrix of an expert in a transposed tensor, gathered and rounded a few rows at a time.
    Strided(Strides),
}

/// A matrix, in place or decoded for one use.
pub enum WeightMatrix<'a> {
    /// The matrix in place.
    Stored(MatrixView<'a>),
    /// Made: `[outputs, inputs]` and its numbers.
    Computed(usize, usize, Vec<f32>),
    /// Rows of several matrices: `[outputs, inputs]`, the matrices, and the origin of the rows.
    Parts(usize, usize, Vec<MatrixView<'a>>, &'a [RowRun]),
}

impl WeightMatrix<'_> {
    /// Returns a view to multiply by.
    pub fn view(&self) -> MatrixView<'_> {
        match self {
            Self::Stored(view) => *view,
            Self::Computed(outputs, inputs, numbers) => {
                MatrixView::plain(Dtype::F32, bytemuck::cast_slice(numbers), *outputs, *inputs)
            }
            Self::Parts(outputs, inputs, parts, runs) => MatrixView {
                parts: Some(MatrixParts { parts, runs }),
                ..MatrixView::plain(Dtype::F32, &[], *outputs, *inputs)
            },
        }
    }
}

/// A matrix in the memory of a device.
#[derive(Debug)]
pub struct DeviceMatrix {
    /// Rows of numbers.
    pub buffer: DeviceBuffer,
    /// The form of the numbers, as kernels take it: a dtype or a type of blocks, and the order of additions.
    pub form: u32,
    /// The factor of numbers in blocks.
    pub factor: f32,
    /// Rows.
    pub outputs: usize,
    /// Columns.
    pub inputs: usize,
    /// True if its levels are multiplied as integers.
    pub integers: bool,
}

impl DeviceMatrix {
    /// Returns the dtype of plain numbers; none for blocks.
    pub fn plain(&self) -> Option<Dtype> {
        let form = self.form & !blocks::PLAIN_ORDER;
        Dtype::ALL.into_iter().find(|dtype| source::dtype(*dtype) == form)
    }
}

/// A weight in the memory of a device.
#[derive(Debug)]
enum DeviceWeight {
    Matrix(DeviceMatrix),
    /// Numbers in f32.
    Vector(DeviceBuffer),
}

/// All weights of a graph.
pub struct SessionWeights {
    tensors: Box<dyn WeightSource>,
    held: Vec<WeightForm>,
    /// Of every weight.
    shapes: Vec<Vec<usize>>,
    /// The rounding of input rows, by weight.
    rounding: BTreeMap<usize, Rounding>,
    /// The unit that multiplies bf16 weights in tiles, in a bf16 run that may use it.
    tiles: Option<TileUnit>,
    /// Copies in the memory of a device, if there is one.
    on_device: Vec<DeviceWeight>,
}

impl SessionWeights {
    /// Loads what has to be loaded. A weight that lies in the file in the dtype of the run, and a
    /// matrix of an f32 run, are left where they are.
    pub fn load(
        graph: &Graph,
        tensors: Box<dyn WeightSource>,
        activation: Dtype,
        arithmetic: ProductArithmetic,
    ) -> Result<Self, Error> {
        let (matrices, experts) = matrices(graph);
        let integers: BTreeSet<usize> = graph
            .nodes
            .iter()
            .filter_map(|node| node.weights.get(INTEGERS))
            .map(|id| id.0)
            .collect();
        let mut held = Vec::with_capacity(graph.weights.len());
        for (n, weight) in graph.weights.iter().enumerate() {
            let run = weight.dtype.resolve(activation);
            let is_matrix = matrices.contains(&n);
            if let Some(of) = tensors.row_parts(WeightId(n)).filter(|_| is_matrix) {
                check_shape(of.shape, weight)?;
                if let Some(form) = parts(&of, &weight.name, arithmetic, run)? {
                    held.push(form);
                    continue;
                }
            }
            if let Some(view) = tensors.blocks(WeightId(n)) {
                check_shape(view.shape, weight)?;
                held.push(blocks(&view, weight, is_matrix.then_some(arithmetic), run)?);
                continue;
            }
            // Experts are too many to be held, or even to be read before a row wants them.
            if experts.contains(&n) && tensors.is_computed(WeightId(n)) {
                let strides = tensors.strided(WeightId(n))?.and_then(|matrix| {
                    Some(Strides { dtype: matrix.dtype.run()?, round: run, by: matrix.strides })
                });
                held.push(strides.map_or(WeightForm::OnDemand(run), WeightForm::Strided));
                continue;
            }
            let view = tensors.view(WeightId(n))?;
            let elements: usize = weight.shape.iter().product();
            check_shape(view.shape, weight)?;
            let file = view.dtype.run();
            let stays = file.is_some_and(|file| file == run || run == Dtype::F32);
            held.push(match file {
                Some(file) if is_matrix && stays => WeightForm::File(file),
                Some(_) if experts.contains(&n) => WeightForm::OnDemand(run),
                _ => {
                    let wide = match view.dtype {
                        FileDtype::I64 | FileDtype::I32 if integers.contains(&n) => {
                            integers::widen(&view, &weight.name, elements)?
                        }
                        _ => widen(&view, &weight.name, elements)?,
                    };
                    if is_matrix {
                        rounded(run, &wide)
                    } else {
                        let mut wide = wide;
                        round::round(run, &mut wide);
                        WeightForm::F32(wide)
                    }
                }
            });
        }
        let shapes = graph.weights.iter().map(|weight| weight.shape.clone()).collect();
        let fast = activation == Dtype::Bf16 && matches!(arithmetic, ProductArithmetic::Q8 { .. });
        let tiles = if fast { TileUnit::fast() } else { None };
        let rounding = BTreeMap::new();
        let on_device = Vec::new();
        Ok(Self { tensors, held, shapes, rounding, tiles, on_device })
    }

    /// Copies all weights to a device. Weights in blocks are decoded first where no kernel does it, as those are that
    /// are computed. Refuses before the first copy what does not fit its free memory, with `beside` more bytes.
    pub fn upload(&mut self, graph: &Graph, queue: &DeviceQueue, beside: u64) -> Result<(), Error> {
        let sizes = graph.weights.iter().zip(&self.held).enumerate().map(|(n, (weight, form))| {
            let each = match form {
                WeightForm::Blocks(ty, _) if blocks::number(*ty).is_some() => {
                    match self.tensors.blocks(WeightId(n)) {
                        Some(view) if !view.row_factors.is_empty() => 4,
                        view => return view.map_or(0, |view| view.bytes.len() as u64),
                    }
                }
                WeightForm::File(dtype)
                | WeightForm::Rounded(dtype, _)
                | WeightForm::Strided(Strides { round: dtype, .. })
                | WeightForm::OnDemand(dtype) => dtype.size(),
                WeightForm::Blocks(..) | WeightForm::Parts(_) | WeightForm::F32(_) => 4,
            };
            weight.shape.iter().fold(each as u64, |bytes, n| bytes.saturating_mul(*n as u64))
        });
        let needed = sizes.fold(beside, u64::saturating_add);
        let free = queue.free_bytes()?;
        if needed > free {
            return Err(Error::DeviceMemory { device: queue.name(), needed, free });
        }
        let all = 0..self.held.len();
        self.on_device = all.map(|n| self.copied(n, queue)).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Copies a weight to a device.
    fn copied(&self, n: usize, queue: &DeviceQueue) -> Result<DeviceWeight, Error> {
        if let WeightForm::F32(numbers) = &self.held[n] {
            return Ok(DeviceWeight::Vector(queue.upload(bytemuck::cast_slice(numbers))?));
        }
        let matrix = self.matrix(WeightId(n))?;
        let view = matrix.view();
        let outputs = view.outputs;
        let inputs = view.inputs;
        let (buffer, form, factor) = match &self.held[n] {
            WeightForm::File(dtype) | WeightForm::Rounded(dtype, _) => {
                (queue.upload(view.bytes)?, source::dtype(*dtype), 1.0)
            }
            WeightForm::OnDemand(dtype) | WeightForm::Strided(Strides { round: dtype, .. }) => {
                let mut numbers = vec![0.0; outputs * inputs];
                match view.strides {
                    Some(strides) => strides.gather(view.bytes, inputs, &mut numbers),
                    None => {
                        for (row, into) in numbers.chunks_exact_mut(inputs.max(1)).enumerate() {
                            view.widen_row(row, into);
                        }
                    }
                }
                let form = source::dtype(*dtype) | blocks::PLAIN_ORDER;
                (queue.upload(&stored_bytes(*dtype, &numbers))?, form, 1.0)
            }
            WeightForm::Blocks(..) | WeightForm::Parts(_) | WeightForm::F32(_) => {
                let number = view.blocks.and_then(blocks::number);
                if let Some(number) = number.filter(|_| view.row_factors.is_none()) {
                    (queue.upload(view.bytes)?, number, view.factor)
                } else {
                    let row = inputs * 4;
                    let buffer = queue.allocate(outputs * row)?;
                    let mut numbers = vec![0.0; inputs];
                    for output in 0..outputs {
                        view.widen_row(output, &mut numbers);
                        buffer.write(output * row, bytemuck::cast_slice(&numbers))?;
                    }
                    (buffer, source::dtype(Dtype::F32) | blocks::PLAIN_ORDER, 1.0)
                }
            }
        };
        let in_blocks = form >= blocks::FIRST && form & blocks::PLAIN_ORDER == 0;
        let integers = in_blocks && matches!(self.held[n], WeightForm::Blocks(_, Some(_)));
        Ok(DeviceWeight::Matrix(DeviceMatrix { buffer, form, factor, outputs, inputs, integers }))
    }

    /// Returns a matrix of the device; none if the weight is small, or there is no device.
    pub fn device_matrix(&self, id: WeightId) -> Option<&DeviceMatrix> {
        match self.on_device.get(id.0) {
            Some(DeviceWeight::Matrix(matrix)) => Some(matrix),
            _ => None,
        }
    }

    /// Returns a small weight of the device; none if it is held as a matrix, or there is no device.
    pub fn device_vector(&self, id: WeightId) -> Option<&DeviceBuffer> {
        match self.on_device.get(id.0) {
            Some(DeviceWeight::Vector(numbers)) => Some(numbers),
            _ => None,
        }
    }

    /// Returns the op of a mixture in which the inputs of a matrix are rounded in one way for one expert, and in another
    /// way for another.
    pub fn experts_apart(&self, graph: &Graph) -> Option<String> {
        let mixtures = graph.nodes.iter().filter(|node| node.op.is(Trait::Experts));
        let apart = mixtures.into_iter().find(|node| {
            let mut first = BTreeMap::new();
            node.weights.iter().filter(|(role, _)| !role.starts_with("bias")).any(|(role, id)| {
                let part = role.split('.').next().unwrap_or_default();
                let rounding = self.rounding(*id);
                *first.entry(part).or_insert(rounding) != rounding
            })
        });
        apart.map(|node| node.op.to_string())
    }

    /// Sets the weights whose input rows are rounded.
    pub fn round_inputs(&mut self, graph: &Graph, rounds: InputRounding) -> Result<(), Error> {
        self.rounding.clear();
        for node in &graph.nodes {
            let left_out = match rounds {
                InputRounding::None => true,
                InputRounding::Linear => node.op.is(Trait::LooksUp) || node.op.is(Trait::Experts),
                InputRounding::All => node.op.is(Trait::LooksUp),
            };
            for (role, &id) in node.weights.iter().filter(|_| !left_out) {
                let Some(rounding) = self.tensors.rounding(id)? else { continue };
                if !node.op.is(Trait::RoundsInputs) {
                    return Err(Error::Other(format!(
                        "the checkpoint has what its `{role}` multiplies in `{}` rounded, which that op does not \
                         do; run it without rounding",
                        node.op
                    )));
                }
                self.rounding.insert(id.0, rounding);
            }
        }
        Ok(())
    }

    /// Sets the rounding of input rows by the types of the weights in the file.
    pub fn round_by_type(&mut self, graph: &Graph, types: &[(BlockType, Rounding)]) {
        let nodes = graph.nodes.iter().filter(|node| multiplies(node));
        for id in nodes.flat_map(|node| node.weights.values()) {
            let stored = self.stored_types(*id);
            if let Some((_, rounding)) = types.iter().find(|(ty, _)| stored.contains(ty)) {
                self.rounding.insert(id.0, *rounding);
            }
        }
    }

    /// Returns the types in which the rows of a weight are stored; none if they are computed.
    fn stored_types(&self, id: WeightId) -> Vec<BlockType> {
        if let Some(of) = self.tensors.row_parts(id) {
            return of.parts.iter().map(|part| part.ty).collect();
        }
        if let Some(view) = self.tensors.blocks(id) {
            return vec![view.ty];
        }
        let plain = self.tensors.view(id).ok().and_then(|view| view.dtype.run());
        plain.map(BlockType::of_dtype).into_iter().collect()
    }

    /// Returns the rounding of the rows that this weight multiplies, if they are rounded.
    pub fn rounding(&self, id: WeightId) -> Option<Rounding> {
        self.rounding.get(&id.0).copied()
    }

    /// Puts the fixed scales of 8-bit KV caches into the states that have one for each part.
    pub fn fix_states(
        &self,
        caches: &[Option<AttentionModules>],
        graph: &mut Graph,
    ) -> Result<(), Error> {
        for (state, cache) in graph.states.iter_mut().zip(caches) {
            let Some(cache) =
                cache.as_ref().filter(|_| state.eight == Some(ScaleGranularity::Tensor))
            else {
                continue;
            };
            state.fixed = match (self.cache_scale(cache, 0)?, self.cache_scale(cache, 1)?) {
                (Some(keys), Some(values)) => Some([keys, values]),
                (None, None) => None,
                (keys, _) => {
                    let (there, lacks) = if keys.is_some() { (0, 1) } else { (1, 0) };
                    return Err(Error::Other(format!(
                        "the checkpoint has `{}` and not `{}`: 8-bit keys and values need a scale each",
                        cache.names(there)[0],
                        cache.names(lacks)[0]
                    )));
                }
            };
        }
        Ok(())
    }

    /// Returns the stored scale of the keys or the values of a cache, if there is one.
    fn cache_scale(&self, cache: &AttentionModules, part: usize) -> Result<Option<f32>, Error> {
        for name in cache.names(part) {
            if let Some(scale) = self.tensors.scale(&name)? {
                return Ok(Some(scale));
            }
        }
        Ok(None)
    }

    /// Returns a matrix `[outputs, inputs]`: in place, or decoded for this one use.
    pub fn matrix(&self, id: WeightId) -> Result<WeightMatrix<'_>, Error> {
        Ok(WeightMatrix::Stored(match &self.held[id.0] {
            WeightForm::File(dtype) => {
                let view = self.tensors.view(id)?;
                let (outputs, inputs) = sides(view.shape);
                self.plain(*dtype, view.bytes, outputs, inputs)
            }
            WeightForm::Rounded(dtype, bytes) => {
                let (outputs, inputs) = sides(self.tensors.view(id)?.shape);
                self.plain(*dtype, bytes, outputs, inputs)
            }
            WeightForm::Blocks(_, packed) => {
                in_file(&self.tensors.blocks(id).ok_or_else(|| lost(id))?, packed.as_deref())
            }
            WeightForm::Parts(packed) => {
                let RowParts { shape, parts, runs } =
                    self.tensors.row_parts(id).ok_or_else(|| lost(id))?;
                let (outputs, inputs) = sides(shape);
                let parts = parts.iter().zip(packed);
                let parts = parts.map(|(part, packed)| in_file(part, packed.as_deref())).collect();
                return Ok(WeightMatrix::Parts(outputs, inputs, parts, runs));
            }
            WeightForm::OnDemand(dtype) => return self.on_demand(id, *dtype),
            WeightForm::Strided(strides) => {
                let bytes = self.tensors.strided(id)?.ok_or_else(|| lost(id))?.bytes;
                let (outputs, inputs) = sides(&self.shapes[id.0]);
                MatrixView {
                    strides: Some(*strides),
                    ..MatrixView::plain(Dtype::F32, bytes, outputs, inputs)
                }
            }
            WeightForm::F32(_) => {
                return Err(Error::Other(format!("weight {} is no matrix", id.0)));
            }
        }))
    }

    /// Returns a matrix of plain numbers, with the unit that multiplies it.
    fn plain<'a>(
        &self,
        dtype: Dtype,
        bytes: &'a [u8],
        outputs: usize,
        inputs: usize,
    ) -> MatrixView<'a> {
        let tiles = self.tiles.filter(|_| dtype == Dtype::Bf16);
        MatrixView { tiles, ..MatrixView::plain(dtype, bytes, outputs, inputs) }
    }

    /// Makes a matrix of an expert for one use.
    fn on_demand(&self, id: WeightId, dtype: Dtype) -> Result<WeightMatrix<'_>, Error> {
        let shape = self.shapes.get(id.0).map_or(&[][..], Vec::as_slice);
        let &[outputs, inputs] = shape else {
            return Err(Error::Other(format!("weight {} is no matrix", id.0)));
        };
        let mut numbers = match self.tensors.computed(id)? {
            Some(numbers) => numbers,
            None => widen(&self.tensors.view(id)?, &format!("number {}", id.0), outputs * inputs)?,
        };
        round::round(dtype, &mut numbers);
        Ok(WeightMatrix::Computed(outputs, inputs, numbers))
    }

    /// Returns a small weight as f32; none if it is held as a matrix.
    pub fn vector(&self, id: WeightId) -> Option<&[f32]> {
        match &self.held[id.0] {
            WeightForm::F32(data) => Some(data),
            WeightForm::File(_)
            | WeightForm::Rounded(..)
            | WeightForm::Blocks(..)
            | WeightForm::Parts(_)
            | WeightForm::Strided(_)
            | WeightForm::OnDemand(_) => None,
        }
    }
}

/// Traits of ops that read the rows of a matrix one by one.
const BY_ROWS: [Trait; 3] = [Trait::Projects, Trait::LooksUp, Trait::MultipliesWithin];

/// Weights that are only ever multiplied by, or looked up in, row by row; and which of them are
/// of experts.
fn matrices(graph: &Graph) -> (BTreeSet<usize>, BTreeSet<usize>) {
    let mut matrices = BTreeSet::new();
    let mut experts = BTreeSet::new();
    for node in &graph.nodes {
        if node.op.is(Trait::Experts) {
            let roles = node.weights.iter().filter(|(role, _)| !role.starts_with("bias"));
            experts.extend(roles.map(|(_, id)| id.0));
        } else if BY_ROWS.iter().any(|by_rows| node.op.is(*by_rows)) {
            let roles = node.weights.iter().filter(|(role, _)| role.starts_with("weight"));
            matrices.extend(roles.map(|(_, id)| id.0));
        }
    }
    matrices.extend(&experts);
    (matrices, experts)
}

/// True if an op multiplies its weights by rows.
fn multiplies(node: &Node) -> bool {
    node.op.is(Trait::RoundsInputs) && !node.op.is(Trait::LooksUp)
}

/// Returns the error for a weight that its source had when the session was opened, and lacks now.
fn lost(id: WeightId) -> Error {
    Error::Other(format!("weight {} is no more where it was", id.0))
}

/// Returns the error for a weight whose type cannot be read as numbers.
fn wrong_dtype(name: &str, ty: &str) -> Error {
    Error::WeightDtype { name: shown(name), found: ty.to_owned() }
}

/// Refuses a weight of another shape than the graph's.
fn check_shape(shape: &[usize], weight: &Weight) -> Result<(), Error> {
    if shape == weight.shape.as_slice() {
        return Ok(());
    }
    let name = shown(&weight.name);
    let got = shape.to_vec();
    let want = weight.shape.clone();
    Err(Error::WeightShape { name, got, want })
}

/// Returns rows and columns of a matrix; other shapes are one row.
fn sides(shape: &[usize]) -> (usize, usize) {
    match *shape {
        [outputs, inputs] => (outputs, inputs),
        _ => (1, shape.iter().product()),
    }
}

/// Returns a matrix as it lies in a file.
fn in_file<'a>(view: &BlockView<'a>, packed: Option<&'a PackedMatrix>) -> MatrixView<'a> {
    let (outputs, inputs) = sides(view.shape);
    let dtype = view.ty.plain().unwrap_or(Dtype::F32);
    MatrixView {
        blocks: Some(view.ty).filter(|ty| ty.is_quantized()),
        factor: view.factor,
        row_factors: Some(view.row_factors).filter(|factors| !factors.is_empty()),
        packed,
        ..MatrixView::plain(dtype, view.bytes, outputs, inputs)
    }
}

/// Returns the layout of a matrix in blocks for products in integers; none if its products are exact.
fn packed(view: &BlockView<'_>, arithmetic: ProductArithmetic) -> Option<Box<PackedMatrix>> {
    let (outputs, inputs) = sides(view.shape);
    let ProductArithmetic::Q8 { repack } = arithmetic else { return None };
    let packed = PackedMatrix::in_place(view.ty, outputs, inputs, view.factor)?;
    Some(Box::new(if repack { packed.with(view.bytes) } else { packed }))
}

/// Checks that there is a decoder, and that rows divide into blocks. One row tells.
fn check_blocks(view: &BlockView<'_>, name: &str) -> Result<(), Error> {
    let inputs = view.shape.last().copied().unwrap_or(0);
    let row = view.ty.row_bytes(inputs).and_then(|row| view.bytes.get(..row)).unwrap_or_default();
    codec::decode(view.ty, row, &mut vec![0.0; inputs])
        .map_err(|_| wrong_dtype(name, view.ty.name()))
}

/// Holds the rows of a matrix as parts; none if a part would have to be rounded for the run.
fn parts(
    of: &RowParts<'_>,
    name: &str,
    arithmetic: ProductArithmetic,
    run: Dtype,
) -> Result<Option<WeightForm>, Error> {
    if !of.parts.iter().all(|part: &BlockView<'_>| {
        part.ty.plain().is_none_or(|dtype| dtype == run || run == Dtype::F32)
    }) {
        return Ok(None);
    }
    of.parts.iter().try_for_each(|part| check_blocks(part, name))?;
    Ok(Some(WeightForm::Parts(of.parts.iter().map(|part| packed(part, arithmetic)).collect())))
}

/// Holds a weight in blocks: as blocks if it is a matrix, decoded if it is small.
fn blocks(
    view: &BlockView<'_>,
    weight: &Weight,
    matrix: Option<ProductArithmetic>,
    run: Dtype,
) -> Result<WeightForm, Error> {
    check_blocks(view, &weight.name)?;
    if let Some(arithmetic) = matrix {
        return Ok(WeightForm::Blocks(view.ty, packed(view, arithmetic)));
    }
    let mut wide = vec![0.0; weight.shape.iter().product()];
    codec::decode(view.ty, view.bytes, &mut wide)
        .map_err(|_| wrong_dtype(&weight.name, view.ty.name()))?;
    for x in &mut wide {
        *x *= view.factor;
    }
    let inputs = weight.shape.last().copied().unwrap_or(0);
    for (row, factor) in wide.chunks_exact_mut(inputs.max(1)).zip(view.row_factors) {
        for x in row {
            *x *= factor;
        }
    }
    round::round(run, &mut wide);
    Ok(WeightForm::F32(wide))
}

fn widen(view: &FileView<'_>, name: &str, elements: usize) -> Result<Vec<f32>, Error> {
    if !view.dtype.is_float() || view.bytes.len() != elements * view.dtype.size() {
        return Err(wrong_dtype(name, view.dtype.name()));
    }
    view.to_f32().map_err(|_| wrong_dtype(name, view.dtype.name()))
}

fn rounded(run: Dtype, wide: &[f32]) -> WeightForm {
    let bytes = match run {
        Dtype::F32 => wide.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Dtype::Bf16 | Dtype::F16 => {
            wide.iter().flat_map(|&x| round::to_bits(run, x).to_le_bytes()).collect()
        }
    };
    WeightForm::Rounded(run, bytes)
}
