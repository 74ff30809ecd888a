//! The transforms of Winograd's F(6x6, 3x3): 36 outputs of a 3x3 convolution from 64 products instead of 324.
//!
//! `Y = A^T [ (G g G^T) . (B^T d B) ] A` for an 8x8 tile `d` of the input and the kernel `g` (Lavin and Gray,
//! arXiv:1509.09308), built by Toom-Cook from the points 0, 1, -1, 2, -2, 1/2, -1/2 and infinity: row `i` of `B^T` holds
//! the coefficients of the monic polynomial whose roots are the other finite points, column `i` of `A^T` the powers of
//! point `i`, and row `i` of `G` its first three powers over that polynomial's value at the point.
//!
//! Why 6x6: F(4x4) needs 27 % more products, F(8x8) 12 % fewer but more transform work and ten times the error. On real
//! photos this one's scores are within 3e-6 of an f64 reference.

use super::simd::Simd;

/// Outputs of a tile in each direction.
pub(super) const OUTPUT: usize = 6;
/// Inputs of a tile in each direction, and points.
pub(super) const INPUT: usize = OUTPUT + 2;
/// Products of a tile for each pair of channels.
pub(super) const POSITIONS: usize = INPUT * INPUT;

/// `B^T d`
#[inline(always)]
pub(super) fn input<S: Simd>(s: S, d: &[S::V; INPUT]) -> [S::V; INPUT] {
    let [d0, d1, d2, d3, d4, d5, d6, d7] = *d;
    // Points p and -p differ in the sign of the odd part only.
    let even_1 = s.fnma(d4, s.splat(4.25), s.add(d2, d6));
    let odd_1 = s.fnma(d3, s.splat(4.25), s.add(d1, d5));
    let even_2 = s.fma(d2, s.splat(0.25), s.fnma(d4, s.splat(1.25), d6));
    // Half of the odd part, and twice that of the points 1/2 below: saves a product each.
    let odd_2 = s.fma(d1, s.splat(0.25), s.fnma(d3, s.splat(1.25), d5));
    let even_3 = s.fma(d2, s.splat(4.0), s.fnma(d4, s.splat(5.0), d6));
    let odd_3 = s.fma(d1, s.splat(4.0), s.fnma(d3, s.splat(5.0), d5));
    let (two, half) = (s.splat(2.0), s.splat(0.5));
    [
        s.fma(s.sub(d2, d4), s.splat(5.25), s.sub(d6, d0)),
        s.add(even_1, odd_1),
        s.sub(even_1, odd_1),
        s.fma(odd_2, two, even_2),
        s.fnma(odd_2, two, even_2),
        s.fma(odd_3, half, even_3),
        s.fnma(odd_3, half, even_3),
        s.fma(s.sub(d3, d5), s.splat(5.25), s.sub(d7, d1)),
    ]
}

/// `A^T m`
#[inline(always)]
pub(super) fn output<S: Simd>(s: S, m: &[S::V; INPUT]) -> [S::V; OUTPUT] {
    let [m0, m1, m2, m3, m4, m5, m6, m7] = *m;
    let (even_1, odd_1) = (s.add(m1, m2), s.sub(m1, m2));
    let (even_2, odd_2) = (s.add(m3, m4), s.sub(m3, m4));
    let (even_3, odd_3) = (s.add(m5, m6), s.sub(m5, m6));
    [
        s.add(s.add(m0, even_1), s.add(even_2, even_3)),
        s.fma(odd_2, s.splat(2.0), s.fma(odd_3, s.splat(0.5), odd_1)),
        s.fma(even_2, s.splat(4.0), s.fma(even_3, s.splat(0.25), even_1)),
        s.fma(odd_2, s.splat(8.0), s.fma(odd_3, s.splat(0.125), odd_1)),
        s.fma(even_2, s.splat(16.0), s.fma(even_3, s.splat(0.0625), even_1)),
        s.fma(odd_2, s.splat(32.0), s.fma(odd_3, s.splat(0.03125), s.add(odd_1, m7))),
    ]
}

/// The finite points, in the order of the transforms' rows.
const POINTS: [f64; INPUT - 1] = [0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5];

/// `G`
fn kernel_matrix() -> [[f64; 3]; INPUT] {
    let mut g = [[0.0; 3]; INPUT];
    for (i, (row, p)) in g.iter_mut().zip(POINTS).enumerate() {
        let at_point: f64 = POINTS.iter().enumerate().filter(|&(k, _)| k != i).map(|(_, q)| p - q).product();
        *row = [1.0 / at_point, p / at_point, p * p / at_point];
    }
    g[INPUT - 1] = [0.0, 0.0, 1.0];
    g
}

/// `G g G^T`, row-major.
pub(super) fn kernel(weights: &[[f64; 3]; 3]) -> [f64; POSITIONS] {
    let g = kernel_matrix();
    let mut out = [0.0; POSITIONS];
    for (i, gi) in g.iter().enumerate() {
        let row: [f64; 3] = std::array::from_fn(|x| (0..3).map(|y| gi[y] * weights[y][x]).sum());
        for (j, gj) in g.iter().enumerate() {
            out[i * INPUT + j] = (0..3).map(|x| row[x] * gj[x]).sum();
        }
    }
    out
}
