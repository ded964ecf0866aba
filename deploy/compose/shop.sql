-- Something to follow.
CREATE TABLE public.orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer text NOT NULL,
    amount numeric(12, 2) NOT NULL,
    placed_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO public.orders (customer, amount)
SELECT 'customer ' || n % 100, n / 7.0 FROM generate_series(1, 10000) AS n;
