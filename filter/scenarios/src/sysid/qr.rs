//! Linear least squares, which find the x that minimizes |A x − y|₂.
//!
//! The method is Householder reflections. Normal equations would square the condition number of A.
//! With delays of seconds and backlogs of ten thousands, half of the digits would be lost. Columns
//! are first scaled to length one, so that their units don't affect the rank.

/// The remaining length below which a scaled column counts as a linear combination of the others.
const DEPENDENT: f64 = 1e-9;

/// Returns x. `rows` are the rows of A, all of the same length. Returns `None` if A has fewer rows
/// than columns, or if the columns are linearly dependent.
pub fn least_squares<const N: usize>(
    rows: &[[f64; N]],
    columns: usize,
    y: &[f64],
) -> Option<Vec<f64>> {
    let n = columns.min(N);
    let m = rows.len();
    if m < n || y.len() != m {
        return None;
    }
    let mut a: Vec<[f64; N]> = rows.to_vec();
    let mut y = y.to_vec();
    let mut scale = [1.0; N];
    for (j, scale) in scale.iter_mut().enumerate().take(n) {
        *scale = a.iter().map(|row| row[j] * row[j]).sum::<f64>().sqrt();
        if *scale <= 0.0 || !scale.is_finite() {
            return None;
        }
        for row in &mut a {
            row[j] /= *scale;
        }
    }
    for k in 0..n {
        let norm = a[k..].iter().map(|row| row[k] * row[k]).sum::<f64>().sqrt();
        if norm < DEPENDENT {
            return None;
        }
        // The reflection uses v = a_k ± |a_k| e_1, with the sign that avoids cancellation.
        let alpha = if a[k][k] > 0.0 { -norm } else { norm };
        let mut v: Vec<f64> = a[k..].iter().map(|row| row[k]).collect();
        v[0] -= alpha;
        let vv: f64 = v.iter().map(|x| x * x).sum();
        for j in k..n {
            let dot: f64 = v.iter().zip(&a[k..]).map(|(v, row)| v * row[j]).sum();
            let factor = 2.0 * dot / vv;
            for (v, row) in v.iter().zip(&mut a[k..]) {
                row[j] -= factor * v;
            }
        }
        let dot: f64 = v.iter().zip(&y[k..]).map(|(v, y)| v * y).sum();
        let factor = 2.0 * dot / vv;
        for (v, y) in v.iter().zip(&mut y[k..]) {
            *y -= factor * v;
        }
    }
    let mut x = vec![0.0; n];
    for k in (0..n).rev() {
        let known: f64 = (k + 1..n).map(|j| a[k][j] * x[j]).sum();
        x[k] = (y[k] - known) / a[k][k];
    }
    for (x, scale) in x.iter_mut().zip(scale) {
        *x /= scale;
    }
    Some(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fits_a_line_through_noise_as_the_textbook_does() {
        // The least-squares line of (0,1), (1,3), (2,4), (3,4) is 1.5 + 1 x.
        let rows = [[1.0, 0.0], [1.0, 1.0], [1.0, 2.0], [1.0, 3.0]];
        let x = least_squares(&rows, 2, &[1.0, 3.0, 4.0, 4.0]).unwrap();
        assert!(
            (x[0] - 1.5).abs() < 1e-12 && (x[1] - 1.0).abs() < 1e-12,
            "{x:?}"
        );
    }

    #[test]
    fn units_that_differ_by_nine_digits_cost_none() {
        let rows: Vec<[f64; 2]> = (1..50)
            .map(|i| [f64::from(i) * 1e-4, f64::from(i * i % 17) * 1e5])
            .collect();
        let y: Vec<f64> = rows.iter().map(|[a, b]| 3.0 * a + 7e-6 * b).collect();
        let x = least_squares(&rows, 2, &y).unwrap();
        assert!((x[0] / 3.0 - 1.0).abs() < 1e-9 && (x[1] / 7e-6 - 1.0).abs() < 1e-9);
    }

    #[test]
    fn dependent_columns_and_too_few_rows_have_no_solution() {
        let rows = [[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]];
        assert_eq!(least_squares(&rows, 2, &[1.0, 2.0, 3.0]), None);
        assert_eq!(least_squares(&rows[..1], 2, &[1.0]), None);
        assert_eq!(least_squares(&[[0.0], [0.0]], 1, &[1.0, 2.0]), None);
    }
}
